/* hub: models, adapters, tokenizers and data sets of the Hugging Face Hub, by name. What is asked for is taken from the
 * cache that huggingface_hub uses, or downloaded into it, so that every program on the machine shares one copy.
 *
 * Layout of the cache (huggingface_hub, "Understand caching"):
 *     models--ORG--NAME/refs/REVISION         the commit a branch or tag stood for when it was last looked up
 *     models--ORG--NAME/snapshots/COMMIT/F    link ../../blobs/ETAG
 *     models--ORG--NAME/blobs/ETAG            contents; ETAG is the SHA-256 of a large file, the git hash of a small
 *                                             one
 *     models--ORG--NAME/blobs/ETAG.incomplete what has been downloaded so far
 *     .locks/models--ORG--NAME/ETAG.lock      held (flock) by whoever downloads it
 * Data sets lie in datasets--ORG--NAME.
 *
 * Environment, as huggingface_hub reads it: HF_HUB_CACHE (else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else
 * ~/.cache/huggingface/hub), HF_ENDPOINT (else https://huggingface.co), HF_TOKEN (else the file HF_TOKEN_PATH, else
 * HF_HOME/token), HF_HUB_OFFLINE=1; the proxy variables of libcurl; CURL_CA_BUNDLE, REQUESTS_CA_BUNDLE or SSL_CERT_FILE
 * for certificates. The token is sent to the endpoint alone, never to where it redirects, and is never logged.
 *
 * Start reading at hub_open in hub.c; hub_http.c has the requests. */
#ifndef KERNELRL_HUB_H
#define KERNELRL_HUB_H

#include "base/arena.h"
#include "base/err.h"

enum hub_kind {
    HUB_MODEL,      /* config.json, tokenizer, model.safetensors or its index and shards. */
    HUB_TOKENIZER,  /* tokenizer.json, or vocab.json and merges.txt; tokenizer_config.json. */
    HUB_PROMPT,     /* Those, and config.json: they make a prompt. */
    HUB_ADAPTER,    /* adapter_config.json, adapter_model.safetensors */
    HUB_CHECKPOINT, /* An adapter where the repository holds one, else a model. */
    /* The .jsonl files of a data set, else its .parquet files, else its .py files. */
    HUB_DATASET
};

struct hub_request {
    enum hub_kind kind;
    const char *name; /* "ORG/NAME" or "ORG/NAME@REVISION" */
    /* A branch, tag or commit, where the name has none. NULL or "": main. */
    const char *revision;
    /* May be NULL. true ends a download, which the next call goes on with. */
    const volatile bool *cancel;
    /* The pause after the first failure. It doubles after each. 0: one second. */
    double backoff_s;
};

/* Returns whether this is "ORG/NAME" or "ORG/NAME@REVISION" as the Hub allows them. It says nothing about a file of
 * that name. */
bool hub_is_name(const char *name);

/* Finds the folder that holds the files of r->kind. The caller frees *dir; the files in it are read-only links. No
 * request is made when the cache has all of them; a branch is then what it was when it was last downloaded. Otherwise
 * the missing files are downloaded, with a progress line. Partial files are continued. Every file is checked against
 * its hash before it gets its name. Transient failures are repeated. Processes that want the same file wait for each
 * other.
 *
 * Errors: ST_CONFIG (no such repository, revision or file; no access; not cached and offline), ST_UNSUPPORTED (the
 * repository holds something else), ST_IO (network, server, disk), ST_PARSE (a reply or an index is malformed),
 * ST_CANCELLED. The message names what was asked for and says what to do. */
enum status hub_open(const struct hub_request *r, char **dir, struct err *e) MUST_USE;

/* What the environment says. Strings live in the arena. */
struct hub_settings {
    struct arena arena;
    const char *cache;    /* A directory, which need not exist. */
    const char *endpoint; /* It has no slash at its end. */
    const char *token;    /* NULL: there is none. */
    bool offline;
};
void hub_settings_read(struct hub_settings *s);
void hub_settings_free(struct hub_settings *s);

#endif
