/* sampler_keys: the keys of struct sampler_options, as rows of a schema. at: the member of S that holds one. */
#ifndef KERNELRL_RL_OPTIONS_SAMPLER_KEYS_H
#define KERNELRL_RL_OPTIONS_SAMPLER_KEYS_H

#include "rl/options/options.h"

/* clang-format off */
#define SAMPLER_KEYS(S, at) \
    KEY_CHOICE_AT(S, "sampler", at.kind, SAMPLER_LIST, "engine", \
                  "eval, generate, corpus, optimize: who answers. openai: the model model_name of an OpenAI-compatible " \
                  "server at base_url (docs/models.md). tinker: the model of a server of the Tinker protocol " \
                  "(docs/tinker.md). engine: the model that is loaded here."), \
    KEY_STRING_OPT_AT(S, "base_url", at.base_url, "null", \
                      "sampler: openai: address of the server, such as http://127.0.0.1:8000/v1; null: that of " \
                      "server_type. tinker: such as http://127.0.0.1:8000; null: TINKER_BASE_URL, else the hosted " \
                      "service."), \
    KEY_STRING_OPT_AT(S, "server_model", at.server_model, "null", \
                      "tinker: the model as the server calls it, where that is not model_name, whose tokenizer and " \
                      "configuration are read here."), \
    KEY_CHOICE_OPT_AT(S, "server_type", at.server_type, SERVER_LIST, "null", \
                      "A server by KernelBench's name for it: sets sampler, base_url and where its key comes from. " \
                      "null: none."), \
    KEY_STRING_OPT_AT(S, "api_key_env", at.api_key_env, "null", \
                      "Name of the environment variable that holds the server's key. null: that of server_type, else " \
                      "KERNELRL_API_KEY, else (over https, or to this machine) OPENAI_API_KEY. tinker: null: TINKER_API_KEY."), \
    KEY_STRING_OPT_AT(S, "reasoning_effort", at.reasoning_effort, "null", \
                      "sampler: openai: how much the model thinks (low, medium, high, where it can). null: its own."), \
    KEY_INT_AT(S, "sampler_concurrency", at.in_flight, "16", "[1,1024]", \
               "openai, tinker: requests in flight at once. Fewer while an openai server says that it is busy."), \
    KEY_FLOAT_AT(S, "sampler_timeout_s", at.timeout_s, "600", "(0,86400]", \
                 "openai: seconds in which a whole answer must be there. tinker: seconds for which the server may be out of " \
                 "reach."), \
    KEY_INT_AT(S, "sampler_tries", at.tries, "6", "[1,100]", \
               "sampler: openai: how often a request is tried before the command ends. It goes on where it was when it " \
               "is called again.")
/* clang-format on */

#endif
