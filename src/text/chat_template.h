/* chat_template: which style the chat template of a checkpoint is. Templates are programs (Jinja); they are not run but
 * recognised by the SHA-256 of their text. */
#ifndef KERNELRL_CHAT_TEMPLATE_H
#define KERNELRL_CHAT_TEMPLATE_H

#include "text/chat.h"

/* The family of the template in dir: chat_template.jinja or, where that is not, "chat_template" of
 * tokenizer_config.json. *family NULL: there is neither. ST_UNSUPPORTED: the template is not known; the message has its
 * file and its hash. */
enum status chat_template_family(const char *dir, const char **family, struct err *e) MUST_USE;
/* The style that renderer names or, where it is NULL or "", that of the template in dir or, where there is none, of the
 * family `otherwise` (NULL: there is none); of a family as chat_style_choose() does. */
enum status chat_template_style(const char *dir, const char *renderer, const char *otherwise, bool thinking,
                                enum chat_style *out, struct err *e) MUST_USE;

#endif
