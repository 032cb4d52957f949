/* limits.h - every bound of the server that a client can run into, in one table. docs/security.md has it too: tools/gen-limits-docs. */
#ifndef PLUMB_SERVER_LIMITS_H
#define PLUMB_SERVER_LIMITS_H

/* connections */
#define LIMIT_CONNECTIONS    1024 /* at a time; a new one closes the one that has idled longest */
#define LIMIT_HEAD_BYTES     (32 << 10) /* request line and headers */
#define LIMIT_HEADERS        100
#define LIMIT_BODY_BYTES     (32 << 20)  /* of one request, unless --max-body says otherwise */
#define LIMIT_BODIES_TOTAL   (256 << 20) /* of all requests that are being received or prepared */
#define LIMIT_PIPELINE_BYTES (64 << 10)  /* sent ahead while a request is being answered */
#define LIMIT_HEAD_SECONDS   20          /* from a request's first byte to the end of its head */
#define LIMIT_BODY_SECONDS   120         /* from the head's end to the body's */
#define LIMIT_IDLE_SECONDS   75          /* between requests */
#define LIMIT_LINGER_SECONDS 2  /* reading on after a refusal, so that the client sees it */
#define LIMIT_STALL_SECONDS  60 /* a client that takes no byte for so long counts as gone */
#define LIMIT_UNSENT_HIGH    (256 << 10) /* unsent output at which a stream's rows pause ... */
#define LIMIT_UNSENT_LOW     (64 << 10)  /* ... and go on */
#define LIMIT_KEEP_ALIVE_MS  8000 /* silence on a stream, at most: then an event that says nothing */

/* keys */
#define LIMIT_API_KEYS          1024
#define LIMIT_API_KEY_BYTES     512       /* of one, at most ... */
#define LIMIT_API_KEY_MIN_BYTES 8         /* ... and at least */
#define LIMIT_API_KEY_FILE      (1 << 20) /* bytes of --api-key-file */

/* preparation */
#define LIMIT_PREPARING     64          /* requests of a class that wait for a slot */
#define LIMIT_PREP_THREADS  2           /* slots for text, and for grammars; media have one */
#define LIMIT_PREP_SLOTS    4           /* of any class */
#define LIMIT_GRAMMAR_BYTES (512 << 20) /* of kept grammars: --grammar-cache */
#define LIMIT_JSON_VALUES   (256 << 20) /* bytes of parsed values of one body */
#define LIMIT_PROMPT_BYTES  (64 << 20)  /* rendered prompt */
#define LIMIT_REPLY_BYTES   (64 << 20)  /* one JSON reply */

/* generation */
#define LIMIT_WAITING          64          /* accepted and not started */
#define LIMIT_CHOICES          32          /* answers of one request: prompts x n */
#define LIMIT_INPUTS           2048        /* texts of one request for embeddings ... */
#define LIMIT_INPUTS_AT_ONCE   16          /* ... of which so many are computed at a time */
#define LIMIT_LIVE             1024        /* answers being generated or waiting, of all requests */
#define LIMIT_SCORES_BYTES     (32 << 20)  /* scores of one request's prompts */
#define LIMIT_SCORES_TOTAL     (256 << 20) /* and of all requests */
#define LIMIT_LOGIT_BIAS       4096        /* entries */
#define LIMIT_IGNORED_NAMES    32          /* unknown fields named in x-plumb-ignored ... */
#define LIMIT_IGNORED_BYTES    512         /* ... and their bytes */
#define LIMIT_SALT_BYTES       256         /* of cache_salt */
#define LIMIT_REQUEST_ID_BYTES 128         /* of a client's X-Request-Id */
#define LIMIT_DRAIN_SECONDS    30          /* running answers may go on so long after SIGTERM */
#define LIMIT_WEDGED_SECONDS   120         /* a step that takes longer will not end any more */
#define LIMIT_RETRY_SECONDS    5           /* what Retry-After says */

/* generations that can be resumed */
#define LIMIT_JOURNAL_BYTES      (256 << 20) /* of all records, unless --journal-max says otherwise */
#define LIMIT_RESUME_TTL_SECONDS 3600 /* since nobody made or read one, unless --resume-ttl does */

/* sessions */
#define LIMIT_SESSIONS \
    512 /* that are known; one key has half of them, the one unused for longest goes */
#define LIMIT_SESSION_BYTES  128        /* of a name: letters, digits and -_.: */
#define LIMIT_SESSION_IDS    (64 << 20) /* bytes of token ids of all that are known */
#define LIMIT_SESSIONS_SAVED 256        /* records in --state-dir */
#define LIMIT_SESSION_RECORD (64 << 20) /* bytes of one */

/* kept responses */
#define LIMIT_STORE_BYTES     (256 << 20) /* of all, unless --store-size says otherwise */
#define LIMIT_STORE_DAYS      30          /* since their last use, unless --store-days does */
#define LIMIT_INPUT_ITEMS     100         /* told at a time */
#define LIMIT_SILENCE_SECONDS 10          /* a stream says something at least so often */

#endif
