/* servers: OpenAI-compatible servers that have a name, and where their keys come from. The names are KernelBench's
 * server types. */
#ifndef KERNELRL_REMOTE_SERVERS_H
#define KERNELRL_REMOTE_SERVERS_H

#include "base/choice.h"
#include "base/err.h"

/* X(value, name, address, variable of the environment that holds the key) */
#define SERVER_LIST(X)                                                                                    \
    X(SERVER_LOCAL, local, "http://127.0.0.1:10210/v1", "SGLANG_API_KEY")                                 \
    X(SERVER_DEEPSEEK, deepseek, "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY")                       \
    X(SERVER_GOOGLE, google, "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY") \
    X(SERVER_TOGETHER, together, "https://api.together.xyz/v1", "TOGETHER_API_KEY")                       \
    X(SERVER_ANTHROPIC, anthropic, "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY")                   \
    X(SERVER_OPENAI, openai, "https://api.openai.com/v1", "OPENAI_API_KEY")                               \
    X(SERVER_FIREWORKS, fireworks, "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY")
enum server_type { CHOICE_ENUM(SERVER_LIST) };

/* type: enum server_type, or below 0 for none. */
const char *server_address(int type); /* NULL for none */

/* The key for an address: of the variable `named` (NULL or "": none is named), else of the server type's, else
 * KERNELRL_API_KEY, else OPENAI_API_KEY, which goes over https and to this machine alone. *key is NULL when no variable
 * is set; *from is the name of the one that was, or would have been. Borrowed from the environment. ST_CONFIG: the
 * named one is not set. */
enum status server_key(const char *named, int type, const char *base_url, const char **key, const char **from,
                       struct err *e) MUST_USE;

#endif
