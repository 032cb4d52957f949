/* read_speed.h - how fast the machine's memory can be read: the ceiling of decoding, which reads every weight once a token.
 *
 * Owns: a buffer that no cache holds, and threads of its own. Reads it as the kernels read weights: chunks handed out as threads get
 * free, the widest loads that the machine has, 4 KiB of prefetch (without either one core reads at little more than half the
 * speed: 6.6 against 12.1 GB/s).
 * Thread: one at a time. */
#ifndef PLUMB_KERNELS_CPU_READ_SPEED_H
#define PLUMB_KERNELS_CPU_READ_SPEED_H

#include "base/err.h"

struct read_speed;

#define READ_SPEED_BYTES ((size_t)512 << 20)

/* threads as in struct cpu_options. Errors: ERR_NOMEM; ERR_IO (a thread could not be started). */
enum err_code read_speed_new(int threads, struct read_speed **out, struct err *err) MUST_CHECK;
void read_speed_free(struct read_speed *r); /* NULL is fine */

/* Read the buffer once. Returns bytes per second. */
double read_speed_once(struct read_speed *r);

#endif
