/* nats_api: what the plugin libkernelrl_nats.so does, which is all that is done with NATS's client library: connecting,
 * publishing, subscribing. The plugin is opened by processes that feed verifiers, never by one that verifies.
 * Everything else (streams, leases, registry) is JSON over these, in jetstream.h. */
#ifndef KERNELRL_VERIFY_POOL_NATS_API_H
#define KERNELRL_VERIFY_POOL_NATS_API_H

#include "base/err.h"

#define NATS_API_ABI 3
#define NATS_API_SYMBOL "kernelrl_nats_api"

struct nats_connection;
/* The Ed25519 signature of the text that the server has sent. False: there is none. */
typedef bool nats_sign_fn(void *ctx, const char *nonce, unsigned char signature[64]);
struct nats_connect {
    const char *url, *name;
    const char *public_key; /* of an NKey; NULL: none */
    nats_sign_fn *sign;     /* with that key's secret half; called by any thread until `close` */
    void *ctx;
    const char *ca_file, *cert_file, *key_file; /* of TLS; NULL: none */
    const char *inbox;                          /* subjects of replies begin so */
    double ping_s;                              /* a server that is silent for two of these is gone */
};
struct nats_header {
    const char *name, *value;
};
struct nats_received {
    const char *subject, *reply, *data; /* reply NULL: none is asked for */
    size_t n;
    void *handle; /* for `header` and `release` */
};
struct nats_api {
    int abi;
    /* Goes on trying where the server is not there. ST_CONFIG: what is given cannot be used, or the server does not let
     * it in; ST_IO: the server took no connection this time; ST_UNSUPPORTED. */
    enum status (*open)(const struct nats_connect *how, struct nats_connection **out, struct err *e);
    void (*close)(struct nats_connection *c);
    bool (*is_connected)(struct nats_connection *c);
    bool (*is_closed)(struct nats_connection *c);  /* for good: the library does not try any more */
    bool (*is_refused)(struct nats_connection *c); /* its last error: the server does not let in who has this key */
    void (*last_error)(struct nats_connection *c, char *out, size_t size);
    /* Readable when there is something to take, or the connection has changed. */
    int (*fd)(struct nats_connection *c);
    enum status (*subscribe)(struct nats_connection *c, const char *subject, struct err *e);
    /* headers end with a name of NULL; reply and headers may be NULL. */
    enum status (*publish)(struct nats_connection *c, const char *subject, const char *reply,
                           const struct nats_header *headers, const void *data, size_t n, struct err *e);
    /* False: nothing has come. The caller releases what it took. */
    bool (*take)(struct nats_connection *c, struct nats_received *out);
    const char *(*header)(const struct nats_received *m, const char *name); /* NULL: there is none */
    void (*release)(struct nats_received *m);
    void (*flush)(struct nats_connection *c, double seconds);
};

/* The plugin beside the program (or KERNELRL_NATS_PLUGIN). ST_UNSUPPORTED: it was not built, or libnats is missing. */
enum status nats_api_load(const struct nats_api **out, struct err *e) MUST_USE;

#endif
