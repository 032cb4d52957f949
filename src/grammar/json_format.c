/* json_format.c - the formats of strings that are enforced, as regular expressions. Each holds only what RFC 3339, 4122, 5321, 2673, 4291,
 * 3986 and 1123 allow, and not all of it: rare spellings are left out. */
#include "grammar/json_schema_int.h"

#include <string.h>

#define DATE_LEAP \
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE_YEAR "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
#define DATE                                                                           \
    "(?:" DATE_YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-" \
    "(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" DATE_LEAP "-02-29)"
#define TIME                                                                                    \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3])" \
    ":[0-5][0-9])"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define HOST  LABEL "(?:\\." LABEL "){0,8}"
#define NAME  "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?" /* RFC 3986 has no bound */
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4  OCTET "\\." OCTET "\\." OCTET "\\." OCTET
#define H16   "[0-9A-Fa-f]{1,4}"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

static const struct {
    const char *name, *regex;
} formats[] = {
    { "date", "^" DATE "$" },
    { "time", "^" TIME "$" },
    { "date-time", "^" DATE "T" TIME "$" },
    { "duration",
      "^P(?:[0-9]{1,4}W|(?:[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?|"
      "[0-9]{1,4}D)(?:T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|"
      "[0-9]{1,4}S))?|T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|"
      "[0-9]{1,4}S))$" },
    { "uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$" },
    { "email",
      "^[A-Za-z0-9_+-]{1,20}(?:\\.[A-Za-z0-9_+-]{1,20}){0,2}@" LABEL "(?:\\." LABEL "){0,4}$" },
    { "hostname", "^" HOST "$" },
    { "ipv4", "^" IPV4 "$" },
    { "ipv6", "^(?:(?:" H16 ":){7}" H16 "|(?:" H16 ":){1,7}:|(?:" H16 ":){1,6}:" H16 "|(?:" H16
              ":){1,5}(?::" H16 "){1,2}|(?:" H16 ":){1,4}(?::" H16 "){1,3}|(?:" H16
              ":){1,3}(?::" H16 "){1,4}|(?:" H16 ":){1,2}(?::" H16 "){1,5}|" H16 ":(?::" H16
              "){1,6}|:(?:(?::" H16 "){1,7}|:))$" },
    { "uri", "^[A-Za-z][A-Za-z0-9+.-]*:(?://" NAME "(?:\\." NAME ")*(?::[0-9]{1,5})?(?:/" PCHAR
             "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?)(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR
             "|[/?])*)?$" },
};

const struct expr *json_format_read(struct build *b, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(formats); i++)
        if (strcmp(formats[i].name, name) == 0)
            return regex_search(b, formats[i].regex, strlen(formats[i].regex), true, "format");
    return NULL;
}
