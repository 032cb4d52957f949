/* guard.c - who asks. An API key, where the server has any: kept and compared as hashes under a secret of this process, so that neither
 * the time that a comparison takes nor a look into memory tells more than the length. Against web pages that reach into the machine: a browser sends the name it believes to talk to (Host), so a page
 * whose name was rebound to a loopback address shows itself by it, and the page's own address (Origin). And whose turn it is: an
 * account for each API key or address, of which nothing but a hash under a secret of this process is kept. */
#define ERR_STATE OPENSSL_ERR_STATE /* a type of theirs has the name of a code of ours */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#undef ERR_STATE

#include "server/server_int.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* host of "host", "host:port", "[v6]:port" into out, lower case not needed. False: malformed. */
static bool guard_split(const char *authority, char *out, size_t n)
{
    size_t len;
    const char *rest;
    if (*authority == '[') {
        const char *end = strchr(authority, ']');
        if (!end)
            return false;
        authority++;
        len = (size_t)(end - authority);
        rest = end + 1;
    } else {
        len = strcspn(authority, ":");
        rest = authority + len;
    }
    if (len == 0 || len >= n || (*rest && *rest != ':') ||
        (*rest == ':' && (strlen(rest) > 6 || strspn(rest + 1, "0123456789") != strlen(rest + 1))))
        return false;
    memcpy(out, authority, len);
    out[len] = '\0';
    return true;
}

static bool guard_is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    size_t n = strlen(host);
    if (strcasecmp(host, "localhost") == 0 || strcasecmp(host, "localhost.") == 0)
        return true;
    if (n > 10 &&
        strcasecmp(host + n - 10, ".localhost") == 0) /* RFC 6761: never leaves the machine */
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static bool guard_is_address(const char *host)
{
    unsigned char any[16];
    return inet_pton(AF_INET, host, any) == 1 || inet_pton(AF_INET6, host, any) == 1;
}

static bool guard_is_wildcard(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 || strcmp(host, "*") == 0;
}

bool guard_host(const struct server *s, const char *host)
{
    char name[256];
    if (!guard_split(host, name, sizeof(name)))
        return false;
    if (s->n_keys > 0) /* a page under a rebound name has no key */
        return true;
    if (guard_is_loopback(name) || strcasecmp(name, s->bind_host) == 0)
        return true;
    /* Bound to every address, the machine has several; an address in Host cannot have been rebound, a name can. */
    if (guard_is_wildcard(s->bind_host) && guard_is_address(name))
        return true;
    return s->config.allow_hosts && http_list_has(s->config.allow_hosts, name);
}

bool guard_origin(const struct server *s, const char *origin, const char *own_host)
{
    static const char *const schemes[] = { "http://", "https://" };
    const char *list = s->config.cors_origins;
    if (list && (http_list_has(list, origin) || http_list_has(list, "*")))
        return true;
    for (size_t i = 0; own_host && i < ARRAY_LEN(schemes); i++) {
        size_t n = strlen(schemes[i]);
        if (strncasecmp(origin, schemes[i], n) == 0 && strcasecmp(origin + n, own_host) == 0)
            return true;
    }
    return false;
}

/* --- keys --- */

/* kind: what text is, so that a key that is spelled like an address is none. */
static void guard_hash(const struct server *s, char kind, const char *text,
                       struct guard_digest *out)
{
    unsigned char
        all[LIMIT_HEAD_BYTES + 8]; /* headers are within the head's limit, keys within theirs */
    unsigned int n_out = sizeof(out->bytes);
    size_t n = strlen(text);
    BUG_ON(n + 1 > sizeof(all));
    all[0] = (unsigned char)kind;
    memcpy(all + 1, text, n);
    BUG_ON(!HMAC(EVP_sha256(), s->secret, sizeof(s->secret), all, n + 1, out->bytes, &n_out));
}

/* What stands after "Bearer", or NULL. */
static const char *guard_bearer(const struct http_head *head)
{
    const char *v = http_header(head, "Authorization");
    if (!v || strncasecmp(v, "Bearer ", 7) != 0)
        return NULL;
    v += 7 + strspn(v + 7, " ");
    return *v ? v : NULL;
}

static enum err_code guard_check_key(const char *key, int32_t index, struct err *err)
{
    size_t n = strlen(key);
    if (n < LIMIT_API_KEY_MIN_BYTES || n > LIMIT_API_KEY_BYTES)
        return err_set(err, ERR_INVALID, "API key %d has %zu bytes: %d to %d are possible",
                       index + 1, n, LIMIT_API_KEY_MIN_BYTES, LIMIT_API_KEY_BYTES);
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return err_set(err, ERR_INVALID,
                           "API key %d: byte %zu cannot stand in a header: only visible ASCII can",
                           index + 1, i + 1);
    return ERR_OK;
}

enum err_code guard_init(struct server *s, struct err *err)
{
    const struct server_config *config = &s->config;
    if (config->n_api_keys > LIMIT_API_KEYS)
        return err_set(err, ERR_INVALID, "%d API keys, the limit is %d", config->n_api_keys,
                       LIMIT_API_KEYS);
    if (config->n_api_keys == 0 && !config->is_insecure_listen && !guard_is_loopback(s->bind_host))
        return err_set(err, ERR_INVALID,
                       "--host %s reaches beyond this machine, and everyone there could use the "
                       "server: give it keys (--api-key-file), or say --insecure-listen",
                       config->host);
    if (config->n_api_keys == 0 && config->cors_origins && http_list_has(config->cors_origins, "*"))
        return err_set(err, ERR_INVALID,
                       "--cors-origin '*' lets every web page in that a user of this machine looks "
                       "at: give the server keys (--api-key-file), or name the origins");
    if (config->n_api_keys > 0 && !config->tls_cert && !guard_is_loopback(s->bind_host))
        log_warn("server",
                 "--host %s without --tls-cert: keys and texts cross the network in plain "
                 "text",
                 config->host);
    s->keys = mem_alloc(MEM_CAT_SERVER, sizeof(*s->keys) * (size_t)(config->n_api_keys + 1));
    for (int32_t i = 0; i < config->n_api_keys; i++) {
        enum err_code code = guard_check_key(config->api_keys[i], i, err);
        if (code != ERR_OK)
            return code;
        guard_hash(s, 'k', config->api_keys[i], &s->keys[i]);
    }
    s->n_keys = config->n_api_keys;
    return ERR_OK;
}

void guard_release(struct server *s)
{
    mem_free(MEM_CAT_SERVER, s->keys);
    s->keys = NULL;
    s->n_keys = 0;
}

bool guard_key(const struct server *s, const struct http_head *head)
{
    const char *given[] = { guard_bearer(head), http_header(head, "x-api-key") };
    int n_equal = 0;
    for (size_t i = 0; i < ARRAY_LEN(given); i++) {
        struct guard_digest d;
        if (!given[i])
            continue;
        guard_hash(s, 'k', given[i], &d);
        for (int32_t k = 0; k < s->n_keys;
             k++) /* all of them: where it is found takes no less time */
            n_equal += CRYPTO_memcmp(d.bytes, s->keys[k].bytes, sizeof(d.bytes)) == 0;
    }
    return s->n_keys == 0 || n_equal > 0;
}

uint64_t guard_session(const struct server *s, const struct session_record *r)
{
    unsigned char all[sizeof(r->who) + sizeof(r->salt) + sizeof(r->model) + sizeof(r->name)];
    unsigned char hash[EVP_MAX_MD_SIZE], *p = all;
    unsigned int n_hash = sizeof(hash);
    uint64_t key;
    memset(all, 0, sizeof(all));
    memcpy(p, r->who, sizeof(r->who));
    memcpy(p += sizeof(r->who), r->salt, sizeof(r->salt));
    memcpy(p += sizeof(r->salt), r->model, strlen(r->model));
    memcpy(p += sizeof(r->model), r->name, strlen(r->name));
    BUG_ON(!HMAC(EVP_sha256(), s->secret, sizeof(s->secret), all, sizeof(all), hash, &n_hash));
    memcpy(&key, hash, sizeof(key));
    return key | 1;
}

uint64_t guard_account(const struct server *s, const struct http_head *head, const char *peer)
{
    const char *bearer = guard_bearer(head), *key = http_header(head, "x-api-key");
    struct guard_digest d;
    uint64_t account;
    if (bearer)
        guard_hash(s, 'k', bearer, &d);
    else if (key && *key)
        guard_hash(s, 'k', key, &d);
    else
        guard_hash(s, 'a', peer, &d);
    memcpy(&account, d.bytes, sizeof(account));
    return account;
}

void guard_who(const struct http_head *head, const char *peer, unsigned char *who)
{
    const char *bearer = http_header(head, "Authorization"), *key = http_header(head, "x-api-key");
    unsigned char text[LIMIT_HEAD_BYTES + 8], hash[EVP_MAX_MD_SIZE];
    unsigned int n_hash = sizeof(hash);
    bool is_bearer = bearer && strncasecmp(bearer, "Bearer ", 7) == 0 && bearer[7];
    const char *name = is_bearer ? bearer + 7 : key && *key ? key : NULL;
    text[0] = name ? 'k' : guard_is_loopback(peer) ? 'l' : 'a';
    if (!name)
        name = text[0] == 'l' ? "" : peer;
    size_t n = strlen(name);
    memcpy(text + 1, name, n);
    BUG_ON(!EVP_Digest(text, n + 1, hash, &n_hash, EVP_sha256(), NULL));
    memcpy(who, hash, STORE_WHO_BYTES);
}
