/* clock.h - monotonic and wall time. */
#ifndef PLUMB_BASE_CLOCK_H
#define PLUMB_BASE_CLOCK_H

#include <stdint.h>

int64_t clock_us(void);          /* monotonic, microseconds since an arbitrary start */
int64_t clock_thread_us(void);   /* processor time of this thread */
int64_t clock_wall_s(void);      /* Unix time, seconds */
void clock_sleep_us(int64_t us); /* a signal may end it early */

#endif
