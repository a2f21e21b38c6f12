#include "policy/find_model.h"

#include "base/fs.h"
#include "base/home.h"
#include "base/log.h"
#include "base/str.h"

enum status locate(const char *key, enum hub_kind kind, const char *name, const char *revision,
                   const volatile bool *cancel, char **out, struct err *e) {
    static const char *const files[] = {[HUB_MODEL] = "config.json, model.safetensors and tokenizer.json",
                                        [HUB_TOKENIZER] = "tokenizer.json",
                                        [HUB_PROMPT] = "config.json and tokenizer.json",
                                        [HUB_ADAPTER] = "adapter_config.json and adapter_model.safetensors",
                                        [HUB_CHECKPOINT] =
                                            "an adapter or a model, such as runs/NAME/checkpoints/final"};
    struct str s = STR_INIT;
    str_adds(&s, name);
    if (*name && !fs_is_dir(s.p)) {
        str_clear(&s);
        str_addf(&s, "%s/%s", home_dir(), name);
    }
    if (fs_is_dir(str_c(&s))) {
        *out = str_steal(&s);
        return ST_OK;
    }
    str_free(&s);
    if (kind == HUB_CHECKPOINT && str_has_prefix(name, "runs/"))
        return FAIL(e, ST_CONFIG, "%s: no run \"%s\" here; kernelrl runs list shows those there are", key, name);
    if (!hub_is_name(name))
        return FAIL(e, ST_CONFIG,
                    "%s: no directory \"%s\"; give a folder with %s, or a name on the Hugging Face Hub "
                    "(ORGANISATION/NAME)",
                    key, name, files[kind]);
    const struct hub_request r = {.kind = kind, .name = name, .revision = revision, .cancel = cancel};
    if (hub_open(&r, out, e) == ST_OK) {
        log_info("%s: %s is %s", key, name, *out); /* the commit is in it: what a branch was, for the record */
        return ST_OK;
    }
    return err_note(e, "%s: no directory of that name, and as a name on the Hub", key);
}
