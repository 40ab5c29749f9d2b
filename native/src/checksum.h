/* crc32c, the checksum of every batch. */

#ifndef COMMITLOG_CHECKSUM_H
#define COMMITLOG_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* A way to compute it. extend() works on the inverted crc. */
typedef struct {
    const char *name;
    uint32_t (*extend)(uint32_t, const uint8_t *, size_t);
} Crc32cWay;

/* Find the ways that this processor knows, and return them, up to a null name; the last one is the fastest, which
 * crc32c() uses. Call it once, before crc32c(). */
const Crc32cWay *crc32c_prepare(void);

/* Continue the crc32c `crc` (0 at first) with `size` bytes. */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);

#endif
