/* Reads and writes the cache of huggingface_hub, and knows which files a model, an adapter or a data set needs. */
#include "io/hub.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "io/hub_http.h"
#include "io/json.h"

enum {
    MAX_NAME = 96, /* This is the Hub's own limit. */
    MAX_REVISION = 200,
    MAX_LISTING_BYTES = 64 << 20,
    MAX_INDEX_BYTES = 64 << 20,
    MAX_DATASET_FILES = 512,
    COMMIT_HEX = 40,
};

/* ---- settings and names ------------------------------------------------------------------------------------------ */

static const char *env(const char *name) {
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static bool is_true(const char *v) {
    static const char *const yes[] = {"1", "on", "yes", "true"};
    for (size_t i = 0; v && i < ARRAY_LEN(yes); i++)
        if (strcasecmp(v, yes[i]) == 0) return true;
    return false;
}

/* "~/x" is x in the home directory. */
static const char *expand(struct arena *a, const char *path) {
    const char *home = env("HOME");
    return home && path[0] == '~' && (path[1] == '/' || !path[1]) ? arena_printf(a, "%s%s", home, path + 1) : path;
}

static const char *read_token(struct arena *a, const char *home) {
    const char *given = env("HF_TOKEN");
    if (!given) given = env("HUGGING_FACE_HUB_TOKEN");
    char *text = NULL;
    if (!given) {
        const char *path = env("HF_TOKEN_PATH");
        path = path ? expand(a, path) : arena_printf(a, "%s/token", home);
        if (!fs_is_file(path) || fs_read(path, 4096, &text, NULL, NULL) != ST_OK) return NULL;
        given = text;
    }
    given += strspn(given, " \t\r\n");
    const size_t n = strcspn(given, " \t\r\n");
    const char *token = n > 0 ? arena_strndup(a, given, n) : NULL;
    free(text);
    return token;
}

void hub_settings_read(struct hub_settings *s) {
    *s = (struct hub_settings){.arena = ARENA_INIT};
    struct arena *a = &s->arena;
    const char *home = env("HF_HOME"), *xdg = env("XDG_CACHE_HOME");
    if (home)
        home = expand(a, home);
    else if (xdg)
        home = arena_printf(a, "%s/huggingface", expand(a, xdg));
    else
        home = arena_printf(a, "%s/.cache/huggingface", env("HOME") ? env("HOME") : ".");
    const char *cache = env("HF_HUB_CACHE");
    if (!cache) cache = env("HUGGINGFACE_HUB_CACHE"); /* This was its former name. */
    s->cache = cache ? expand(a, cache) : arena_printf(a, "%s/hub", home);
    char *endpoint = arena_strdup(a, env("HF_ENDPOINT") ? env("HF_ENDPOINT") : "https://huggingface.co");
    for (size_t n = strlen(endpoint); n > 0 && endpoint[n - 1] == '/';) endpoint[--n] = 0;
    s->endpoint = endpoint;
    s->token = read_token(a, home);
    s->offline = is_true(env("HF_HUB_OFFLINE") ? env("HF_HUB_OFFLINE") : env("TRANSFORMERS_OFFLINE"));
}

void hub_settings_free(struct hub_settings *s) {
    arena_free(&s->arena);
    *s = (struct hub_settings){.arena = ARENA_INIT};
}

/* Returns whether this is a part of a name by the Hub's rule: letters, digits, - _ . without "--" and "..", and no - or
 * . at either end. */
static bool is_name_part(const char *p, size_t n) {
    if (n == 0 || n > MAX_NAME) return false;
    for (size_t i = 0; i < n; i++) {
        const bool mark = p[i] == '-' || p[i] == '.';
        if (!mark && p[i] != '_' && !isalnum((unsigned char)p[i])) return false;
        if (mark && (i == 0 || i + 1 == n || p[i + 1] == p[i])) return false;
    }
    return true;
}

/* Returns whether this may be a revision. Branches may have slashes, but nothing that would leave the folder refs/ or
 * upset an address. */
static bool is_revision(const char *r) {
    const size_t n = strlen(r);
    if (n == 0 || n > MAX_REVISION || r[0] == '/' || r[0] == '.' || r[0] == '-' || r[n - 1] == '/') return false;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)r[i]) && !strchr("-_./+=", r[i])) return false;
        if ((r[i] == '.' || r[i] == '/') && r[i + 1] == r[i]) return false;
        if (r[i] == '/' && r[i + 1] == '.') return false;
    }
    return true;
}

bool hub_is_name(const char *name) {
    const size_t org = strcspn(name, "/"), whole = strcspn(name, "@");
    if (whole <= org || whole > MAX_NAME) return false;
    return is_name_part(name, org) && is_name_part(name + org + 1, whole - org - 1) &&
           (!name[whole] || is_revision(name + whole + 1));
}

static bool is_commit(const char *r) { return strlen(r) == COMMIT_HEX && strspn(r, "0123456789abcdef") == COMMIT_HEX; }

/* Returns whether a path inside a repository may become one inside the cache. */
static bool is_safe_path(const char *p) {
    if (!*p || strlen(p) > 500) return false;
    for (const char *part = p;; part++) {
        const size_t n = strcspn(part, "/");
        if (n == 0 || n > 200 || part[0] == '.') return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)part[i] < 0x20 || part[i] == 0x7f) return false;
        part += n;
        if (!*part) return true;
    }
}

/* ---- one repository ---------------------------------------------------------------------------------------------- */

struct hub {
    struct arena arena;
    struct hub_settings set;
    struct http http;
    enum hub_kind kind;
    const char *repo, *revision;
    const char *prefix; /* Of addresses: "" or "datasets/". */
    const char *folder; /* models--ORG--NAME */
    const char *store;  /* Its path. */
    char commit[COMMIT_HEX + 1];
    const char *snapshot; /* The path of the commit's snapshot. */
    const char **listed;  /* The files of the repository, once they were asked for. */
    size_t n_listed;
    int64_t fetched_bytes;
    int n_fetched;
};

static void set_commit(struct hub *h, const char *commit) {
    memcpy(h->commit, commit, COMMIT_HEX);
    h->snapshot = arena_printf(&h->arena, "%s/snapshots/%s", h->store, h->commit);
}

static const char *in_snapshot(struct hub *h, const char *name) {
    return arena_printf(&h->arena, "%s/%s", h->snapshot, name);
}

static bool is_here(struct hub *h, const char *name) { return fs_is_file(in_snapshot(h, name)); }

static const char *ref_path(struct hub *h) { return arena_printf(&h->arena, "%s/refs/%s", h->store, h->revision); }

/* Finds the commit that the revision stood for when it was last looked up. */
static bool cached_commit(struct hub *h) {
    CLEANUP_FREE char *text = NULL;
    if (is_commit(h->revision)) {
        set_commit(h, h->revision);
        return true;
    }
    const char *path = ref_path(h);
    if (!fs_is_file(path) || fs_read(path, 1024, &text, NULL, NULL) != ST_OK) return false;
    text[strcspn(text, " \t\r\n")] = 0;
    if (!is_commit(text)) return false;
    set_commit(h, text);
    return true;
}

static enum status write_ref(struct hub *h, struct err *e) {
    if (is_commit(h->revision)) return ST_OK;
    char *path = arena_strdup(&h->arena, ref_path(h)), *slash = strrchr(path, '/');
    *slash = 0;
    TRY(fs_mkdirs(path, e));
    *slash = '/';
    return fs_write_atomic(path, h->commit, COMMIT_HEX, e);
}

/* Reads the shards that an index names, each once, into arena memory. */
static enum status read_shards(struct hub *h, const char ***out, size_t *n, struct err *e) {
    const char *path = in_snapshot(h, "model.safetensors.index.json"), *tensor;
    CLEANUP_JSON json_t *j = NULL;
    json_t *map, *v;
    TRY(js_load(path, MAX_INDEX_BYTES, &j, e));
    TRY(js_get_object(j, path, "weight_map", &map, e));
    *n = 0;
    *out = arena_array(&h->arena, const char *, json_object_size(map) + 1);
    json_object_foreach(map, tensor, v) {
        const char *file = json_string_value(v);
        if (!file || strchr(file, '/') || !is_safe_path(file))
            return FAIL(e, ST_PARSE, "%s: weight_map: %.200s: expected the name of a file beside the index", path,
                        tensor);
        size_t i = 0;
        while (i < *n && strcmp((*out)[i], file) != 0) i++;
        if (i == *n) (*out)[(*n)++] = arena_strdup(&h->arena, file);
    }
    return ST_OK;
}

/* A data set has no files that it must have, so a finished download leaves a mark. */
static const char *mark_path(struct hub *h) { return arena_printf(&h->arena, "%s/.kernelrl/%s", h->store, h->commit); }

/* Returns the first file that the snapshot lacks, or NULL. */
static const char *first_missing_of(struct hub *h, enum hub_kind kind) {
    if (kind == HUB_DATASET) return fs_is_file(mark_path(h)) ? NULL : "a file of the data set";
    if (kind == HUB_CHECKPOINT) {
        const char *missing = first_missing_of(h, HUB_ADAPTER);
        return missing && !is_here(h, "adapter_config.json") ? first_missing_of(h, HUB_MODEL) : missing;
    }
    if (kind == HUB_ADAPTER)
        return !is_here(h, "adapter_config.json")         ? "adapter_config.json"
               : !is_here(h, "adapter_model.safetensors") ? "adapter_model.safetensors"
                                                          : NULL;
    if (!is_here(h, "tokenizer.json") && !(is_here(h, "vocab.json") && is_here(h, "merges.txt")))
        return "tokenizer.json";
    if (kind == HUB_TOKENIZER) return NULL;
    if (!is_here(h, "config.json")) return "config.json";
    if (kind == HUB_PROMPT) return NULL;
    if (is_here(h, "model.safetensors")) return NULL;
    const char **shard;
    size_t n;
    if (!is_here(h, "model.safetensors.index.json") || read_shards(h, &shard, &n, NULL) != ST_OK)
        return "model.safetensors";
    for (size_t i = 0; i < n; i++)
        if (!is_here(h, shard[i])) return shard[i];
    return NULL;
}

static const char *first_missing(struct hub *h) { return first_missing_of(h, h->kind); }

/* Returns whether a data set lies in the cache without our mark: another program has put it there. */
static bool has_data_files(const char *dir, int depth) {
    char **names = NULL;
    size_t n = 0;
    bool found = false;
    if (depth > 8 || fs_list(dir, &names, &n, NULL) != ST_OK) return false;
    for (size_t i = 0; i < n; i++) {
        CLEANUP_STR struct str path = STR_INIT;
        str_addf(&path, "%s/%s", dir, names[i]);
        found |= fs_is_dir(path.p) ? has_data_files(path.p, depth + 1)
                                   : str_has_suffix(names[i], ".jsonl") || str_has_suffix(names[i], ".jsonl.zst") ||
                                         str_has_suffix(names[i], ".parquet") || str_has_suffix(names[i], ".py");
        free(names[i]);
    }
    free(names);
    return found;
}

/* ---- hashes ------------------------------------------------------------------------------------------------------ */

/* Compares a file with its ETag. 64 hex digits are its SHA-256 (large files); 40 are the hash that git gives it (small
 * ones). Any other ETag, as mirrors may send it, says nothing. The file is read from the disk, so that no doubt is left
 * about how it came there. ST_INVALID when they differ. */
static enum status check_hash(struct hub *h, const char *what, int fd, int64_t size, const char *etag, struct err *e) {
    const size_t digits = strlen(etag);
    if ((digits != 64 && digits != 40) || strspn(etag, "0123456789abcdef") != digits) {
        log_warn("%s: %s: the server names no hash to check it with", h->repo, what);
        return ST_OK;
    }
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    unsigned char *buf = xmalloc(1 << 20), sum[EVP_MAX_MD_SIZE];
    unsigned n_sum = 0;
    char hex[2 * EVP_MAX_MD_SIZE + 1] = "", head[40];
    enum status st = ST_OK;
    bool ok = md && EVP_DigestInit_ex(md, digits == 64 ? EVP_sha256() : EVP_sha1(), NULL) == 1;
    /* git hashes "blob SIZE\0" and the contents. */
    if (ok && digits == 40) {
        const int n = snprintf(head, sizeof head, "blob %lld", (long long)size) + 1;
        ok = EVP_DigestUpdate(md, head, (size_t)n) == 1;
    }
    for (int64_t at = 0; ok && at < size;) {
        const ssize_t n = pread(fd, buf, 1 << 20, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            st = FAIL(e, ST_IO, "%s: %s: cannot read what was downloaded: %s", h->repo, what,
                      n < 0 ? strerror(errno) : "it is shorter than it was");
            goto done;
        }
        ok = EVP_DigestUpdate(md, buf, (size_t)n) == 1;
        at += n;
        if (size > 100000000 && at % (256 << 20) == 0)
            log_progress("%s: %s: checking %.0f %%", h->repo, what, 100 * (double)at / (double)size);
    }
    ok = ok && EVP_DigestFinal_ex(md, sum, &n_sum) == 1;
    log_progress_end();
    if (!ok) {
        st = FAIL(e, ST_FAILED, "libcrypto: no %s", digits == 64 ? "SHA-256" : "SHA-1");
        goto done;
    }
    for (unsigned i = 0; i < n_sum; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    if (strcmp(hex, etag) != 0)
        st = FAIL(e, ST_INVALID, "%s: %s: damaged: its %s is %s, expected %s", h->repo, what,
                  digits == 64 ? "SHA-256" : "git hash", hex, etag);
done:
    free(buf);
    EVP_MD_CTX_free(md);
    return st;
}

/* ---- one file ---------------------------------------------------------------------------------------------------- */

/* Takes the lock of a blob, which huggingface_hub takes, too. *fd stays open while it is held. */
static enum status lock(struct hub *h, const char *path, const char *what, int *fd, struct err *e) {
    bool said = false;
    for (;;) {
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0664);
        if (*fd < 0) return FAIL(e, ST_IO, "%s: cannot create the lock file: %s", path, strerror(errno));
        while (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno == EINTR) continue;
            /* This file system has no locks. The download survives a second writer: see hub_http.c. */
            if (errno != EWOULDBLOCK) return ST_OK;
            if (!said) log_info("%s: %s: another process is downloading it; waiting", h->repo, what);
            said = true;
            if (h->http.cancel && *h->http.cancel) {
                close(*fd);
                *fd = -1;
                return FAIL(e, ST_CANCELLED, "%s: %s: interrupted", h->repo, what);
            }
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        }
        /* Its last holder may have removed the file. Then it locks nothing. */
        struct stat mine, named;
        if (fstat(*fd, &mine) == 0 && stat(path, &named) == 0 && mine.st_ino == named.st_ino) return ST_OK;
        close(*fd);
    }
}

static enum status check_space(const struct hub *h, const char *what, int64_t need, struct err *e) {
    struct statvfs v;
    if (need <= 0 || statvfs(h->store, &v) != 0) return ST_OK;
    const double have = (double)v.f_bavail * (double)v.f_frsize;
    if ((double)need <= have) return ST_OK;
    return FAIL(e, ST_IO,
                "%s: %s: %.2f GB are still to be downloaded, but only %.2f GB are free in %s; make room, or set "
                "HF_HUB_CACHE to a directory on another disk",
                h->repo, what, (double)need * 1e-9, have * 1e-9, h->set.cache);
}

/* Downloads a blob. What an interrupted call has left is continued. It is thrown away once when its hash is wrong. */
static enum status download(struct hub *h, const char *name, const char *url, const char *blob,
                            const struct http_answer *a, struct err *e) {
    const char *part = arena_printf(&h->arena, "%s.incomplete", blob);
    CLEANUP_FD int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    struct stat sb;
    if (fd < 0 || fstat(fd, &sb) != 0) return FAIL(e, ST_IO, "%s: cannot write: %s", part, strerror(errno));
    int64_t from = sb.st_size, end = from;
    for (bool again = false;; again = true) {
        if (a->size >= 0 && from > a->size) from = 0;
        TRY(check_space(h, name, a->size - from, e));
        if (from > 0 && !again)
            log_info("%s: %s: going on after %.1f MB of an earlier download", h->repo, name, (double)from * 1e-6);
        end = from;
        if (a->size < 0 || from < a->size) TRY(http_download(&h->http, url, name, fd, from, a->size, &end, e));
        if (ftruncate(fd, end) != 0) return FAIL(e, ST_IO, "%s: cannot write: %s", part, strerror(errno));
        struct err why = {0};
        const enum status st = check_hash(h, name, fd, end, a->etag, &why);
        if (st == ST_OK) break;
        if (st == ST_INVALID && ftruncate(fd, 0) != 0) unlink(part);
        if (st != ST_INVALID || again || from == 0) {
            if (st == ST_INVALID)
                return FAIL(e, ST_IO, "%s; try again, and if that does not help, see what lies between here and %s",
                            why.msg, h->set.endpoint);
            if (e) *e = why;
            return st;
        }
        log_warn("%s; downloading it from the beginning", why.msg);
        from = 0;
    }
    if (fsync(fd) != 0 || rename(part, blob) != 0) return FAIL(e, ST_IO, "%s: %s", blob, strerror(errno));
    h->fetched_bytes += end - from;
    h->n_fetched++;
    return ST_OK;
}

/* snapshots/COMMIT/NAME -> ../../blobs/ETAG, with one ../ more for each folder in NAME. */
static enum status link_blob(struct hub *h, const char *name, const char *etag, struct err *e) {
    CLEANUP_STR struct str target = STR_INIT;
    const char *path = in_snapshot(h, name);
    for (const char *p = name; (p = strchr(p, '/')); p++) str_adds(&target, "../");
    str_addf(&target, "../../blobs/%s", etag);
    char *dir = arena_strdup(&h->arena, path);
    *strrchr(dir, '/') = 0;
    TRY(fs_mkdirs(dir, e));
    const char *temporary = arena_printf(&h->arena, "%s.tmp.%d", path, (int)getpid());
    unlink(temporary);
    if (symlink(target.p, temporary) != 0 || rename(temporary, path) != 0) {
        const int saved = errno;
        unlink(temporary);
        return FAIL(e, ST_IO, "%s: cannot link it to its contents: %s", path, strerror(saved));
    }
    return ST_OK;
}

static enum status fetch_file(struct hub *h, const char *name, struct err *e) {
    if (is_here(h, name)) return ST_OK;
    CLEANUP_STR struct str url = STR_INIT;
    str_addf(&url, "%s/%s%s/resolve/%s/", h->set.endpoint, h->prefix, h->repo, h->commit);
    http_add_escaped(&url, name, true);
    struct http_answer a;
    TRY(http_head(&h->http, url.p, name, &a, e));
    if (*a.commit && strcmp(a.commit, h->commit) != 0)
        return FAIL(e, ST_IO, "%s: %s: %s answered for commit %s, asked was for %s", h->repo, name, url.p, a.commit,
                    h->commit);
    if (!is_safe_path(a.etag) || strchr(a.etag, '/'))
        return FAIL(e, ST_IO,
                    "%s: %s: %s gave no usable ETag (got \"%s\"); HF_ENDPOINT must name a server that speaks the "
                    "Hub's protocol",
                    h->repo, name, url.p, a.etag);
    const char *blob = arena_printf(&h->arena, "%s/blobs/%s", h->store, a.etag);
    const char *locks = arena_printf(&h->arena, "%s/.locks/%s", h->set.cache, h->folder);
    TRY(fs_mkdirs(arena_printf(&h->arena, "%s/blobs", h->store), e));
    TRY(fs_mkdirs(locks, e));
    CLEANUP_FD int held = -1;
    TRY(lock(h, arena_printf(&h->arena, "%s/%s.lock", locks, a.etag), name, &held, e));
    if (!fs_is_file(blob)) TRY(download(h, name, url.p, blob, &a, e));
    return link_blob(h, name, a.etag, e);
}

/* ---- what a repository holds --------------------------------------------------------------------------------------*/

/* One request gives the commit behind the revision and the names of all files. */
static enum status list_repository(struct hub *h, struct err *e) {
    CLEANUP_STR struct str url = STR_INIT, body = STR_INIT;
    str_addf(&url, "%s/api/%s/%s/revision/", h->set.endpoint, h->kind == HUB_DATASET ? "datasets" : "models", h->repo);
    http_add_escaped(&url, h->revision, false);
    TRY(http_text(&h->http, url.p, "list of files", MAX_LISTING_BYTES, &body, e));
    CLEANUP_JSON json_t *j = NULL;
    const char *sha;
    json_t *files, *v;
    size_t i;
    if (js_parse(str_c(&body), body.len, url.p, &j, e) != ST_OK || js_get_str(j, url.p, "sha", &sha, e) != ST_OK ||
        js_get_array(j, url.p, "siblings", &files, e) != ST_OK)
        return err_note(e, "%s: the server does not speak the Hub's protocol (HF_ENDPOINT)", h->repo);
    if (!is_commit(sha)) return FAIL(e, ST_PARSE, "%s: sha: expected 40 hex digits, got \"%.80s\"", url.p, sha);
    set_commit(h, sha);
    h->listed = arena_array(&h->arena, const char *, json_array_size(files) + 1);
    json_array_foreach(files, i, v) {
        const char *name = json_string_value(json_object_get(v, "rfilename"));
        if (name && is_safe_path(name)) h->listed[h->n_listed++] = arena_strdup(&h->arena, name);
    }
    return ST_OK;
}

static bool is_listed(const struct hub *h, const char *name) {
    for (size_t i = 0; i < h->n_listed; i++)
        if (strcmp(h->listed[i], name) == 0) return true;
    return false;
}

static enum status fetch_if_listed(struct hub *h, const char *name, struct err *e) {
    return is_listed(h, name) ? fetch_file(h, name, e) : ST_OK;
}

static enum status fetch_tokenizer(struct hub *h, struct err *e) {
    TRY(fetch_if_listed(h, "tokenizer_config.json", e));
    TRY(fetch_if_listed(h, "chat_template.jinja", e));
    if (is_listed(h, "tokenizer.json")) return fetch_file(h, "tokenizer.json", e);
    if (!is_listed(h, "vocab.json") || !is_listed(h, "merges.txt"))
        return FAIL(e, ST_UNSUPPORTED,
                    "%s: no tokenizer: the repository has neither tokenizer.json nor vocab.json and merges.txt",
                    h->repo);
    TRY(fetch_file(h, "vocab.json", e));
    return fetch_file(h, "merges.txt", e);
}

static enum status fetch_prompt(struct hub *h, struct err *e) {
    if (!is_listed(h, "config.json"))
        return FAIL(e, ST_UNSUPPORTED,
                    "%s: no config.json: the repository holds no model in the layout of transformers", h->repo);
    TRY(fetch_file(h, "config.json", e));
    return fetch_tokenizer(h, e);
}

/* Small files come first, so that whatever speaks against the model is found before gigabytes have been loaded. */
static enum status fetch_model(struct hub *h, struct err *e) {
    if (!is_listed(h, "config.json"))
        return FAIL(e, ST_UNSUPPORTED, "%s: no config.json: %s", h->repo,
                    is_listed(h, "adapter_config.json")
                        ? "the repository holds an adapter; give the model it is for, and this as "
                          "load_checkpoint_path (kernelrl sample: --adapter)"
                        : "the repository holds no model in the layout of transformers");
    const bool single = is_listed(h, "model.safetensors"), sharded = is_listed(h, "model.safetensors.index.json");
    if (!single && !sharded)
        return FAIL(e, ST_UNSUPPORTED,
                    "%s: no model.safetensors and no index of shards: the repository has no weights "
                    "in the safetensors format, the only one that is read",
                    h->repo);
    TRY(fetch_file(h, "config.json", e));
    TRY(fetch_if_listed(h, "generation_config.json", e));
    TRY(fetch_tokenizer(h, e));
    if (single) return fetch_file(h, "model.safetensors", e);
    TRY(fetch_file(h, "model.safetensors.index.json", e));
    const char **shard;
    size_t n;
    TRY(read_shards(h, &shard, &n, e));
    for (size_t i = 0; i < n; i++) TRY(fetch_file(h, shard[i], e));
    return ST_OK;
}

static enum status fetch_adapter(struct hub *h, struct err *e) {
    if (!is_listed(h, "adapter_config.json") || !is_listed(h, "adapter_model.safetensors"))
        return FAIL(e, ST_UNSUPPORTED,
                    "%s: expected an adapter (adapter_config.json and adapter_model.safetensors); the repository has "
                    "%s",
                    h->repo, is_listed(h, "config.json") ? "a full model" : "neither that nor a model");
    TRY(fetch_file(h, "adapter_config.json", e));
    return fetch_file(h, "adapter_model.safetensors", e);
}

static enum status fetch_checkpoint(struct hub *h, struct err *e) {
    return is_listed(h, "adapter_config.json") ? fetch_adapter(h, e) : fetch_model(h, e);
}

static bool has_form(const char *name, int form) {
    static const char *const suffix[] = {".jsonl", ".parquet", ".py"};
    return str_has_suffix(name, suffix[form]) || (form == 0 && str_has_suffix(name, ".jsonl.zst"));
}

/* Fetches rows in the easiest form that there is. */
static enum status fetch_dataset(struct hub *h, struct err *e) {
    for (int form = 0; form < 3; form++) {
        size_t n = 0;
        for (size_t i = 0; i < h->n_listed; i++) n += has_form(h->listed[i], form);
        if (n == 0) continue;
        if (n > MAX_DATASET_FILES)
            return FAIL(e, ST_UNSUPPORTED, "%s: %zu data files, at most %d are downloaded; is this a set of problems?",
                        h->repo, n, MAX_DATASET_FILES);
        for (size_t i = 0; i < h->n_listed; i++)
            if (has_form(h->listed[i], form)) TRY(fetch_file(h, h->listed[i], e));
        char *mark = arena_strdup(&h->arena, mark_path(h)), *slash = strrchr(mark, '/');
        *slash = 0;
        TRY(fs_mkdirs(mark, e));
        *slash = '/';
        return fs_write_atomic(mark, "", 0, e);
    }
    return FAIL(e, ST_UNSUPPORTED, "%s: no .jsonl, .parquet or .py file in the data set", h->repo);
}

static enum status fetch(struct hub *h, struct err *e) {
    TRY(list_repository(h, e));
    const double start_s = clock_now_s();
    if (first_missing(h)) {
        log_info("%s: downloading revision %s (commit %.12s) from %s into %s", h->repo, h->revision, h->commit,
                 h->set.endpoint, h->set.cache);
        static enum status (*const by_kind[])(struct hub *, struct err *) = {
            [HUB_MODEL] = fetch_model,           [HUB_TOKENIZER] = fetch_tokenizer, [HUB_ADAPTER] = fetch_adapter,
            [HUB_CHECKPOINT] = fetch_checkpoint, [HUB_DATASET] = fetch_dataset,     [HUB_PROMPT] = fetch_prompt,
        };
        TRY(by_kind[h->kind](h, e));
        log_info("%s: %d files, %.1f MB in %.1f s", h->repo, h->n_fetched, (double)h->fetched_bytes * 1e-6,
                 clock_now_s() - start_s);
    }
    return write_ref(h, e);
}

static enum status open_here(struct hub *h, const struct hub_request *r, struct err *e) {
    const char *at = strchr(r->name, '@');
    h->repo = arena_strndup(&h->arena, r->name, strcspn(r->name, "@"));
    h->revision = at ? at + 1 : r->revision && *r->revision ? r->revision : "main";
    if (!hub_is_name(r->name))
        return FAIL(e, ST_CONFIG, "\"%s\" is no name of a repository: expected ORGANISATION/NAME, or with @REVISION",
                    r->name);
    if (!is_revision(h->revision))
        return FAIL(e, ST_CONFIG, "%s: \"%s\" is no revision: expected a branch, a tag or a commit", h->repo,
                    h->revision);
    h->kind = r->kind;
    h->prefix = r->kind == HUB_DATASET ? "datasets/" : "";
    const int org = (int)strcspn(h->repo, "/");
    h->folder = arena_printf(&h->arena, "%s--%.*s--%s", r->kind == HUB_DATASET ? "datasets" : "models", org, h->repo,
                             h->repo + org + 1);
    h->store = arena_printf(&h->arena, "%s/%s", h->set.cache, h->folder);
    const char *missing = NULL;
    if (cached_commit(h) && !(missing = first_missing(h))) return ST_OK;
    if (h->set.offline) {
        if (h->kind == HUB_DATASET && *h->commit && has_data_files(h->snapshot, 0)) return ST_OK;
        return FAIL(e, ST_CONFIG,
                    "%s: %s%s is not in the cache (%s), and HF_HUB_OFFLINE forbids to download it; unset that, or copy "
                    "the cache from a machine that has it",
                    h->repo, missing ? missing : "revision ", missing ? "" : h->revision, h->set.cache);
    }
    h->http = (struct http){.endpoint = h->set.endpoint,
                            .token = h->set.token,
                            .repo = h->repo,
                            .revision = h->revision,
                            .cancel = r->cancel,
                            .backoff_s = r->backoff_s};
    TRY(http_open(&h->http, e));
    return fetch(h, e);
}

enum status hub_open(const struct hub_request *r, char **dir, struct err *e) {
    struct hub h = {.arena = ARENA_INIT};
    *dir = NULL;
    hub_settings_read(&h.set);
    const enum status st = open_here(&h, r, e);
    if (st == ST_OK) *dir = xstrdup(h.snapshot);
    log_progress_end();
    http_close(&h.http);
    hub_settings_free(&h.set);
    arena_free(&h.arena);
    return st;
}
