/* guard.c - who asks. Against web pages that reach into the machine: a browser sends the name it believes to talk to (Host), so a page
 * whose name was rebound to a loopback address shows itself by it, and the page's own address (Origin). And whose turn it is: an
 * account for each API key or address, of which nothing but a hash under a secret of this process is kept. */
#define ERR_STATE OPENSSL_ERR_STATE /* a type of theirs has the name of a code of ours */
#include <openssl/evp.h>
#include <openssl/hmac.h>
#undef ERR_STATE

#include "server/server_int.h"

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
    if (s->config.origins && http_list_has(s->config.origins, origin))
        return true;
    for (size_t i = 0; own_host && i < ARRAY_LEN(schemes); i++) {
        size_t n = strlen(schemes[i]);
        if (strncasecmp(origin, schemes[i], n) == 0 && strcasecmp(origin + n, own_host) == 0)
            return true;
    }
    return false;
}

uint64_t guard_account(const struct server *s, const struct http_head *head, const char *peer)
{
    const char *bearer = http_header(head, "Authorization"), *key = http_header(head, "x-api-key");
    unsigned char text[LIMIT_HEAD_BYTES + 8], hash[EVP_MAX_MD_SIZE];
    unsigned int n_hash = sizeof(hash);
    uint64_t account;
    bool is_bearer = bearer && strncasecmp(bearer, "Bearer ", 7) == 0 && bearer[7];
    const char *who = is_bearer ? bearer + 7 : key && *key ? key : peer;
    size_t n = strlen(who);
    text[0] = who == peer ? 'a' : 'k'; /* a key that is spelled like an address is none */
    memcpy(text + 1, who, n);          /* within the head's limit, as all headers */
    BUG_ON(!HMAC(EVP_sha256(), s->secret, sizeof(s->secret), text, n + 1, hash, &n_hash));
    memcpy(&account, hash, sizeof(account));
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
