#define ERR_STATE OPENSSL_ERR_STATE /* a type of theirs has the name of a code of ours */
#include <openssl/err.h>
#include <openssl/ssl.h>
#undef ERR_STATE

#include "base/mem.h"
#include "server/tls.h"

#include <event2/bufferevent_ssl.h>
#include <unistd.h>

struct tls {
    SSL_CTX *ctx;
};

/* What OpenSSL says of its last failure. */
static enum err_code tls_error(struct err *err, const char *flag, const char *path)
{
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return err_set(err, ERR_INVALID, "%s %s: %s", flag, path, why ? why : "cannot be used");
}

static enum err_code tls_readable(const char *flag, const char *path, struct err *err)
{
    if (access(path, R_OK) != 0)
        return err_set(err, ERR_IO, "%s %s: the file cannot be read", flag, path);
    return ERR_OK;
}

/* The one protocol that is spoken here; a client that offers others only is told so by the handshake. */
static int tls_choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *n_out,
                               const unsigned char *in, unsigned int n_in, void *arg)
{
    static const unsigned char known[] = "\x08http/1.1";
    unsigned char *chosen = NULL;
    if (SSL_select_next_proto(&chosen, n_out, known, sizeof(known) - 1, in, n_in) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int tls_no_passphrase(char *out, int n, int is_writing, void *arg)
{
    return -1; /* a server has nobody to ask */
}

static enum err_code tls_load(struct tls *t, const char *cert, const char *key, struct err *err)
{
    enum err_code code = tls_readable("--tls-cert", cert, err);
    if (code == ERR_OK)
        code = tls_readable("--tls-key", key, err);
    if (code != ERR_OK)
        return code;
    SSL_CTX_set_default_passwd_cb(t->ctx, tls_no_passphrase);
    if (SSL_CTX_use_certificate_chain_file(t->ctx, cert) != 1)
        return tls_error(err, "--tls-cert", cert);
    if (SSL_CTX_use_PrivateKey_file(t->ctx, key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(t->ctx) != 1)
        return tls_error(err, "--tls-key", key);
    return ERR_OK;
}

enum err_code tls_open(const char *cert, const char *key, struct tls **out, struct err *err)
{
    struct tls *t = mem_alloc(MEM_CAT_SERVER, sizeof(*t));
    t->ctx = SSL_CTX_new(TLS_server_method());
    BUG_ON(!t->ctx || SSL_CTX_set_min_proto_version(t->ctx, TLS1_2_VERSION) != 1);
    SSL_CTX_set_options(t->ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                    SSL_OP_CIPHER_SERVER_PREFERENCE);
    /* A thousand idle connections need no buffers; what is resent may lie elsewhere than what was tried. */
    SSL_CTX_set_mode(t->ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_alpn_select_cb(t->ctx, tls_choose_protocol, NULL);
    enum err_code code = tls_load(t, cert, key, err);
    if (code != ERR_OK) {
        tls_close(t);
        return code;
    }
    *out = t;
    return ERR_OK;
}

void tls_close(struct tls *t)
{
    if (!t)
        return;
    SSL_CTX_free(t->ctx);
    mem_free(MEM_CAT_SERVER, t);
}

struct bufferevent *tls_accept(struct tls *t, struct event_base *base, int fd)
{
    SSL *ssl = SSL_new(t->ctx);
    if (!ssl)
        return NULL;
    struct bufferevent *bev = bufferevent_openssl_socket_new(
        base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!bev)
        SSL_free(ssl);
    return bev;
}

void tls_end(struct bufferevent *bev)
{
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    ERR_clear_error();
    if (SSL_is_init_finished(ssl))
        (void)SSL_shutdown(ssl); /* sends; what the client says is read or not */
    ERR_clear_error();
}
