#include "verify/pool/farm_setup.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "verify/pool/farm.h"
#include "verify/pool/nkey.h"
#include "verify/pool/secret.h"

struct farm_user {
    char name[HOST_NAME_BYTES], class[CLASS_BYTES], key[64];
};
struct farm_users {
    struct farm_user *item;
    int n;
};

/* ---- certificates -------------------------------------------------------------------------------------------------*/

static bool write_pem(const char *path, X509 *cert, EVP_PKEY *key) {
    FILE *f = fopen(path, "we");
    if (!f) return false;
    if (key) (void)chmod(path, 0600);
    const bool written = (!cert || PEM_write_X509(f, cert) == 1) &&
                         (!key || PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL) == 1);
    return fclose(f) == 0 && written;
}

static bool add_extension(X509 *cert, X509 *issuer, int nid, const char *value) {
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *x = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    const bool added = x && X509_add_ext(cert, x, -1) == 1;
    X509_EXTENSION_free(x);
    return added;
}

static bool has_serial(X509 *cert) {
    BIGNUM *bn = BN_new();
    const bool set = bn && BN_rand(bn, 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
                     BN_to_ASN1_INTEGER(bn, X509_get_serialNumber(cert));
    BN_free(bn);
    return set;
}

/* A certificate for NAME with a key of its own, signed by the issuer, or by itself where there is none. names: "DNS:x"
 * or "IP:y", of a server; NULL: of a client. */
static X509 *make_cert(const char *name, const char *names, X509 *issuer, EVP_PKEY *issuer_key, EVP_PKEY **key) {
    X509 *cert = X509_new();
    *key = EVP_EC_gen("P-256");
    bool good = cert && *key && X509_set_version(cert, 2) == 1 && has_serial(cert);
    if (good) {
        X509_NAME *n = X509_get_subject_name(cert);
        /* No host's clock is relied on, nor that of the machine where this runs: a key is taken back by its line in
         * the server's configuration, not by a date. */
        good = ASN1_TIME_set_string_X509(X509_getm_notBefore(cert), "20000101000000Z") == 1 &&
               ASN1_TIME_set_string_X509(X509_getm_notAfter(cert), "99991231235959Z") == 1 &&
               X509_set_pubkey(cert, *key) == 1 &&
               X509_NAME_add_entry_by_txt(n, "CN", MBSTRING_UTF8, (const unsigned char *)name, -1, -1, 0) == 1 &&
               X509_set_issuer_name(cert, issuer ? X509_get_subject_name(issuer) : n) == 1 &&
               add_extension(cert, issuer ? issuer : cert, NID_basic_constraints,
                             issuer ? "critical,CA:FALSE" : "critical,CA:TRUE") &&
               add_extension(cert, issuer ? issuer : cert, NID_subject_key_identifier, "hash");
    }
    if (good && names) good = add_extension(cert, issuer, NID_subject_alt_name, names);
    if (good && issuer) good = add_extension(cert, issuer, NID_ext_key_usage, names ? "serverAuth" : "clientAuth");
    if (good && X509_sign(cert, issuer ? issuer_key : *key, EVP_sha256()) > 0) return cert;
    X509_free(cert);
    EVP_PKEY_free(*key);
    *key = NULL;
    return NULL;
}

struct authority {
    X509 *cert;
    EVP_PKEY *key;
};

static void forget_authority(struct authority *a) {
    X509_free(a->cert);
    EVP_PKEY_free(a->key);
    *a = (struct authority){0};
}

/* That of the folder: read, or made. */
static enum status have_authority(const char *folder, struct authority *a, struct err *e) {
    CLEANUP_STR struct str cert = STR_INIT, key = STR_INIT;
    *a = (struct authority){0};
    str_addf(&cert, "%s/ca.pem", folder);
    str_addf(&key, "%s/ca-key.pem", folder);
    if (!fs_is_file(cert.p)) {
        a->cert = make_cert("kernelrl farm", NULL, NULL, NULL, &a->key);
        if (!a->cert) return FAIL(e, ST_FAILED, "no certificate can be made");
        if (!write_pem(cert.p, a->cert, NULL) || !write_pem(key.p, NULL, a->key))
            return FAIL(e, ST_IO, "%s: %s", cert.p, strerror(errno));
        return ST_OK;
    }
    FILE *c = fopen(cert.p, "re"), *k = fopen(key.p, "re");
    if (c) a->cert = PEM_read_X509(c, NULL, NULL, NULL);
    if (k) a->key = PEM_read_PrivateKey(k, NULL, NULL, NULL);
    if (c) fclose(c);
    if (k) fclose(k);
    if (a->cert && a->key) return ST_OK;
    return FAIL(e, ST_IO, "%s, %s: they cannot be read", cert.p, key.p);
}

/* FOLDER/{ca,cert,key}.pem. */
static enum status give_cert(const struct authority *a, const char *folder, const char *name, const char *names,
                             struct err *e) {
    CLEANUP_STR struct str ca = STR_INIT, cert = STR_INIT, key = STR_INIT;
    EVP_PKEY *own;
    str_addf(&ca, "%s/ca.pem", folder);
    str_addf(&cert, "%s/cert.pem", folder);
    str_addf(&key, "%s/key.pem", folder);
    if (fs_is_file(cert.p)) return ST_OK;
    X509 *made = make_cert(name, names, a->cert, a->key, &own);
    if (!made) return FAIL(e, ST_FAILED, "no certificate can be made for %s", name);
    const bool written = write_pem(ca.p, a->cert, NULL) && write_pem(cert.p, made, NULL) && write_pem(key.p, NULL, own);
    X509_free(made);
    EVP_PKEY_free(own);
    return written ? ST_OK : FAIL(e, ST_IO, "%s: %s", cert.p, strerror(errno));
}

/* ---- users --------------------------------------------------------------------------------------------------------*/

/* FOLDER/users.json: who has been added, with public keys. */
static enum status read_users(const char *folder, struct farm_users *out, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_JSON json_t *o = NULL;
    json_t *list;
    *out = (struct farm_users){xcalloc(FARM_WORKERS_MAX + 1, sizeof *out->item), 0};
    str_addf(&path, "%s/users.json", folder);
    if (!fs_is_file(path.p)) return ST_OK;
    TRY(js_load(path.p, 1 << 20, &o, e));
    TRY(js_get_array(o, path.p, "users", &list, e));
    for (size_t i = 0; i < json_array_size(list) && out->n < FARM_WORKERS_MAX; i++) {
        const char *name, *class, *key;
        struct farm_user *u = &out->item[out->n++];
        TRY(js_get_str(json_array_get(list, i), path.p, "name", &name, e));
        TRY(js_get_str(json_array_get(list, i), path.p, "class", &class, e));
        TRY(js_get_str(json_array_get(list, i), path.p, "key", &key, e));
        snprintf(u->name, sizeof u->name, "%s", name);
        snprintf(u->class, sizeof u->class, "%s", class);
        snprintf(u->key, sizeof u->key, "%s", key);
    }
    return ST_OK;
}

static enum status write_users(const char *folder, const struct farm_users *users, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT, text = STR_INIT, keys = STR_INIT, keys_path = STR_INIT;
    str_addf(&path, "%s/users.json", folder);
    str_addf(&keys_path, "%s/trainer/workers", folder);
    js_begin(&text, NULL, '{');
    js_begin(&text, "users", '[');
    for (int i = 0; i < users->n; i++) {
        const struct farm_user *u = &users->item[i];
        js_begin(&text, NULL, '{');
        js_put_str(&text, "name", u->name);
        js_put_str(&text, "class", u->class);
        js_put_str(&text, "key", u->key);
        js_end(&text, '}');
        if (u->class[0]) str_addf(&keys, "%s %s %s\n", u->key, u->name, u->class);
    }
    js_end(&text, ']');
    js_end(&text, '}');
    str_addc(&text, '\n');
    TRY(fs_write_atomic(keys_path.p, str_c(&keys), keys.len, e));
    return fs_write_atomic(path.p, text.p, text.len, e);
}

/* A folder with a key and a certificate of its own, and the farm's secret. */
static enum status add_user(const struct farm_setup *s, const struct authority *a, struct farm_users *users,
                            const char *name, const char *class, struct err *e) {
    CLEANUP_STR struct str folder = STR_INIT, nkey = STR_INIT, secret = STR_INIT, first = STR_INIT;
    CLEANUP_FREE char *text = NULL;
    struct nkey key;
    size_t n;
    for (int i = 0; i < users->n; i++)
        if (strcmp(users->item[i].name, name) == 0) {
            if (strcmp(users->item[i].class, class) == 0) return ST_OK;
            return FAIL(e, ST_CONFIG, "%s: it is there, with the class %s", name, users->item[i].class);
        }
    if (users->n == FARM_WORKERS_MAX) return FAIL(e, ST_CONFIG, "at most %d users", FARM_WORKERS_MAX);
    str_addf(&folder, "%s/%s%s", s->folder, class[0] ? "worker-" : "", name);
    str_addf(&nkey, "%s/nkey", folder.p);
    str_addf(&secret, "%s/secret", folder.p);
    str_addf(&first, "%s/trainer/secret", s->folder);
    TRY(fs_mkdirs(folder.p, e));
    if (chmod(folder.p, 0700) != 0) return FAIL(e, ST_IO, "%s: %s", folder.p, strerror(errno));
    TRY(nkey_make(&key, e));
    TRY(nkey_write(&key, nkey.p, e));
    TRY(give_cert(a, folder.p, name, NULL, e));
    if (!class[0]) TRY(secret_make_file(secret.p, e));
    if (class[0]) {
        TRY(fs_read(first.p, 1000, &text, &n, e));
        TRY(fs_write_atomic(secret.p, text, n, e));
        if (chmod(secret.p, 0600) != 0) return FAIL(e, ST_IO, "%s: %s", secret.p, strerror(errno));
    }
    struct farm_user *u = &users->item[users->n++];
    snprintf(u->name, sizeof u->name, "%s", name);
    snprintf(u->class, sizeof u->class, "%s", class);
    snprintf(u->key, sizeof u->key, "%s", key.public_key);
    return ST_OK;
}

/* ---- the server ---------------------------------------------------------------------------------------------------*/

/* A worker takes jobs of its class, says what became of them, and has its line in the registry. */
static void put_worker(const struct farm_user *u, struct str *out) {
    str_addf(out, "    { nkey: %s, # %s\n      permissions: {\n        publish: { allow: [\n", u->key, u->name);
    for (int suspect = 0; suspect < 2; suspect++) {
        const char *lane = suspect ? "s" : "w";
        str_addf(out,
                 "          \"$JS.API.CONSUMER.INFO." FARM_JOBS ".%s-%s\", \"$JS.API.CONSUMER.MSG.NEXT." FARM_JOBS
                 ".%s-%s\",\n          \"$JS.ACK." FARM_JOBS ".%s-%s.>\",\n",
                 lane, u->class, lane, u->class, lane, u->class);
    }
    str_addf(out,
             "          \"krl.verdict.*\", \"" FARM_WORKERS_SUBJECT ".%s\", \"" FARM_CACHE_SUBJECT ".*.%s.>\",\n"
             "          \"$JS.API.DIRECT.GET." FARM_CACHE "." FARM_CACHE_SUBJECT ".*.%s.>\" ] },\n"
             "        subscribe: { allow: [ \"_INBOX_%s.>\", \"krl.cancel.*\" ] } } },\n",
             u->name, u->class, u->class, u->key);
}

static void put_trainer(const struct farm_user *u, struct str *out) {
    str_addf(out,
             "    { nkey: %s, # %s\n      permissions: {\n"
             "        publish: { allow: [ \"krl.job.>\", \"krl.cancel.*\", \"$JS.API.>\", \"$JS.ACK." FARM_VERDICTS
             ".>\" ] },\n"
             "        subscribe: { allow: [ \"_INBOX_%s.>\", \"" FARM_WORKERS_SUBJECT
             ".*\", \"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES." FARM_JOBS ".*\" ] } } },\n",
             u->key, u->name, u->key);
}

static enum status write_server(const struct farm_setup *s, const struct farm_users *users, struct err *e) {
    CLEANUP_STR struct str text = STR_INIT, path = STR_INIT;
    str_addf(&text,
             "# Made by kernelrl verifiers setup. Run it as: cd server && nats-server -c nats.conf\n"
             "# Version 2.12.6 or newer of nats-server; docs/farm.md says why.\n"
             "port: %d\nmax_payload: 4MB\nmax_pending: 64MB\n"
             "jetstream { store_dir: \"jetstream\", max_file_store: 16GB }\n"
             "tls { cert_file: \"cert.pem\", key_file: \"key.pem\", ca_file: \"ca.pem\", verify: true }\n"
             "authorization {\n  users: [\n",
             s->port);
    for (int i = 0; i < users->n; i++)
        if (users->item[i].class[0])
            put_worker(&users->item[i], &text);
        else
            put_trainer(&users->item[i], &text);
    str_adds(&text, "  ]\n}\n");
    str_addf(&path, "%s/server/nats.conf", s->folder);
    return fs_write_atomic(path.p, text.p, text.len, e);
}

/* ---- all ----------------------------------------------------------------------------------------------------------*/

static enum status add_workers(const struct farm_setup *s, const struct authority *a, struct farm_users *users,
                               struct err *e) {
    for (int i = 0; i < s->n_workers; i++) {
        char name[HOST_NAME_BYTES], slug[HOST_NAME_BYTES], class[CLASS_BYTES];
        const char *equals = strchr(s->worker[i], '=');
        snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - s->worker[i]) : 0, s->worker[i]);
        hardware_slug(name, slug, sizeof slug);
        hardware_slug(equals ? equals + 1 : "", class, sizeof class);
        if (!name[0] || strcmp(name, slug) != 0 || !equals || strcmp(class, equals + 1) != 0 || !strchr(class, '-') ||
            strcmp(name, "trainer") == 0)
            return FAIL(e, ST_CONFIG,
                        "--worker: expected NAME=CLASS, such as h1=cuda-nvidia-h200 (kernelrl doctor on the host names "
                        "its classes), in lower case, got \"%s\"",
                        s->worker[i]);
        TRY(add_user(s, a, users, name, class, e));
    }
    return ST_OK;
}

static enum status make_all(const struct farm_setup *s, struct authority *a, struct farm_users *users, struct err *e) {
    CLEANUP_STR struct str server = STR_INIT, names = STR_INIT;
    str_addf(&server, "%s/server", s->folder);
    str_addf(&names, "%s:%s", strspn(s->server, "0123456789.:abcdef") == strlen(s->server) ? "IP" : "DNS", s->server);
    TRY(fs_mkdirs(server.p, e));
    if (chmod(s->folder, 0700) != 0) return FAIL(e, ST_IO, "%s: %s", s->folder, strerror(errno));
    TRY(have_authority(s->folder, a, e));
    TRY(give_cert(a, server.p, s->server, names.p, e));
    TRY(read_users(s->folder, users, e));
    TRY(add_user(s, a, users, "trainer", "", e));
    TRY(add_workers(s, a, users, e));
    TRY(write_server(s, users, e));
    return write_users(s->folder, users, e);
}

enum status farm_setup(const struct farm_setup *s, struct str *next, struct err *e) {
    struct authority a;
    struct farm_users users = {0};
    if (strpbrk(s->server, " /\"'\\,")) return FAIL(e, ST_CONFIG, "--server: expected a host, got \"%s\"", s->server);
    const enum status st = make_all(s, &a, &users, e);
    if (st == ST_OK) {
        str_addf(next,
                 "%s: made for %d workers. Next:\n"
                 "  1. copy %s/server to %s, and run there: cd server && nats-server -c nats.conf\n",
                 s->folder, users.n - 1, s->folder, s->server);
        for (int i = 0; i < users.n; i++)
            if (users.item[i].class[0])
                str_addf(next,
                         "  2. copy %s/worker-%s to %s, and run there: KERNELRL_FARM=worker-%s kernelrl verify-worker "
                         "--name %s %s --nats tls://%s:%d\n",
                         s->folder, users.item[i].name, users.item[i].name, users.item[i].name, users.item[i].name,
                         str_has_prefix(users.item[i].class, "cuda-") ? "--gpus all" : "--slots 1", s->server, s->port);
        str_addf(next, "  3. KERNELRL_FARM=%s/trainer kernelrl train ... verify_hosts=nats:tls://%s:%d\n", s->folder,
                 s->server, s->port);
    }
    forget_authority(&a);
    free(users.item);
    return st;
}
