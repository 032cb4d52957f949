/* tls.h - TLS for accepted sockets: OpenSSL below libevent's bufferevents. TLS 1.2 and 1.3, HTTP/1.1 only.
 *
 * Thread: I/O thread only. */
#ifndef PLUMB_SERVER_TLS_H
#define PLUMB_SERVER_TLS_H

#include "base/err.h"

struct bufferevent;
struct event_base;
struct tls;

/* cert: PEM, the server's certificate first, then those that lead to the root. key: PEM, without a passphrase.
 * Errors: ERR_IO - a file cannot be read; ERR_INVALID - it is no such thing, or the two do not belong together. */
enum err_code tls_open(const char *cert, const char *key, struct tls **out,
                       struct err *err) MUST_CHECK;
void tls_close(struct tls *t); /* NULL is fine; every bufferevent is freed before */

/* A bufferevent that owns fd and waits for the client's handshake. Its callbacks come from the loop, never from below a write. NULL:
 * no memory; fd stays the caller's. */
struct bufferevent *tls_accept(struct tls *t, struct event_base *base, int fd);

/* Say that nothing more will be sent: without it a client cannot tell the end from a cut. */
void tls_end(struct bufferevent *bev);

#endif
