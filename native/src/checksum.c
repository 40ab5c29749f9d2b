/* crc32c by tables; where there is one, with the instruction of SSE 4.2; and for long data by carry-less products.
 *
 * A crc is the remainder of the message, as a polynomial over two elements, divided by P. Bits are reflected: the
 * first bit of the message has the highest power. The functions below work on the register, that is on the crc
 * before its final inversion.
 */

#include "checksum.h"

#include <string.h>

#define POLYNOMIAL UINT32_C(0x82F63B78) /* without x^32, reflected */

static uint32_t tables[8][256];

static Crc32cWay ways[5]; /* that this processor knows, the fastest last; a null name ends them */
static uint32_t (*fastest)(uint32_t, const uint8_t *, size_t);

static void fill_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = tables[table - 1][byte];
            tables[table][byte] = crc >> 8 ^ tables[0][crc & 0xFF];
        }
}

static uint32_t by_tables(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++)
            crc ^= tables[7 - byte][word >> 8 * byte & 0xFF];
    }
    for (; size; data++, size--)
        crc = crc >> 8 ^ tables[0][(crc ^ *data) & 0xFF];
    return crc;
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#include <immintrin.h>

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *data, size_t size)
{
    uint64_t wide = crc;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    crc = (uint32_t)wide;
    if (size >= 4) {
        uint32_t word;
        memcpy(&word, data, 4);
        crc = _mm_crc32_u32(crc, word);
        data += 4, size -= 4;
    }
    for (; size; data++, size--)
        crc = _mm_crc32_u8(crc, *data);
    return crc;
}

/* Folding. A register of 16 bytes holds `early * x^64 + late`. To move it past D bits of message is to multiply it by
 * x^D; as only the remainder counts, by smaller polynomials: early * (x^(D+64) mod P) + late * (x^D mod P). The product
 * of two reflected numbers comes out multiplied by x, so the factors are for D - 1. */

#define FOLDED_BYTES 512 /* measured: below, the instruction alone is as fast */

/* Two factors, for early and late. */
typedef struct {
    uint64_t early, late;
} Factors;

static Factors past_64, past_128, past_256; /* to move past this many bytes */

/* Return x^power mod P as a reflected number of 64 bits: in its upper half, as its lower half has the powers above 31. */
static uint64_t power_of_x(unsigned power)
{
    uint32_t remainder = UINT32_C(1) << 31; /* x^0 */
    while (power--)
        remainder = remainder >> 1 ^ (remainder & 1 ? POLYNOMIAL : 0);
    return (uint64_t)remainder << 32;
}

static Factors factors_past(unsigned bytes)
{
    return (Factors){power_of_x(bytes * 8 + 64 - 1), power_of_x(bytes * 8 - 1)};
}

static void fill_factors(void)
{
    past_64 = factors_past(64);
    past_128 = factors_past(128);
    past_256 = factors_past(256);
}

#define NARROW __attribute__((target("pclmul,sse4.2")))
#define WIDE __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))

NARROW static inline __m128i narrow_factors(Factors factors)
{
    return _mm_set_epi64x((long long)factors.late, (long long)factors.early);
}

NARROW static inline __m128i narrow_fold(__m128i held, __m128i factors, const uint8_t *next)
{
    __m128i early = _mm_clmulepi64_si128(held, factors, 0x00);
    __m128i late = _mm_clmulepi64_si128(held, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(early, late), _mm_loadu_si128((const __m128i *)next));
}

NARROW static uint32_t by_narrow_folding(uint32_t crc, const uint8_t *data, size_t size)
{
    enum { LANE = 16, STREAMS = 8, BLOCK = LANE * STREAMS };
    if (size < FOLDED_BYTES)
        return by_instruction(crc, data, size);
    __m128i held[STREAMS], factors = narrow_factors(past_128);
    for (int stream = 0; stream < STREAMS; stream++)
        held[stream] = _mm_loadu_si128((const __m128i *)(data + LANE * stream));
    held[0] = _mm_xor_si128(held[0], _mm_cvtsi32_si128((int)crc));
    for (data += BLOCK, size -= BLOCK; size >= BLOCK; data += BLOCK, size -= BLOCK)
        for (int stream = 0; stream < STREAMS; stream++)
            held[stream] = narrow_fold(held[stream], factors, data + LANE * stream);
    uint8_t rest[BLOCK];
    for (int stream = 0; stream < STREAMS; stream++)
        _mm_storeu_si128((__m128i *)(rest + LANE * stream), held[stream]);
    return by_instruction(by_instruction(0, rest, sizeof rest), data, size);
}

WIDE static inline __m512i wide_factors(Factors factors)
{
    return _mm512_broadcast_i32x4(narrow_factors(factors));
}

WIDE static inline __m512i wide_fold(__m512i held, __m512i factors, __m512i next)
{
    __m512i early = _mm512_clmulepi64_epi128(held, factors, 0x00);
    __m512i late = _mm512_clmulepi64_epi128(held, factors, 0x11);
    return _mm512_ternarylogic_epi64(early, late, next, 0x96); /* the exclusive or of all three */
}

WIDE static uint32_t by_wide_folding(uint32_t crc, const uint8_t *data, size_t size)
{
    enum { LANE = 64, STREAMS = 4, BLOCK = LANE * STREAMS };
    if (size < FOLDED_BYTES)
        return by_instruction(crc, data, size);
    __m512i held[STREAMS], factors = wide_factors(past_256);
    for (int stream = 0; stream < STREAMS; stream++)
        held[stream] = _mm512_loadu_si512(data + LANE * stream);
    held[0] = _mm512_xor_si512(held[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (data += BLOCK, size -= BLOCK; size >= BLOCK; data += BLOCK, size -= BLOCK)
        for (int stream = 0; stream < STREAMS; stream++)
            held[stream] = wide_fold(held[stream], factors, _mm512_loadu_si512(data + LANE * stream));
    factors = wide_factors(past_64);
    __m512i all = held[0];
    for (int stream = 1; stream < STREAMS; stream++)
        all = wide_fold(all, factors, held[stream]);
    for (; size >= LANE; data += LANE, size -= LANE)
        all = wide_fold(all, factors, _mm512_loadu_si512(data));
    uint8_t rest[LANE];
    _mm512_storeu_si512(rest, all);
    return by_instruction(by_instruction(0, rest, sizeof rest), data, size);
}

static int known_ways(void)
{
    int count = 1;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2"))
        return count;
    ways[count++] = (Crc32cWay){"sse4.2", by_instruction};
    if (!__builtin_cpu_supports("pclmul"))
        return count;
    fill_factors();
    ways[count++] = (Crc32cWay){"pclmul", by_narrow_folding};
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("vpclmulqdq"))
        ways[count++] = (Crc32cWay){"avx512", by_wide_folding};
    return count;
}

#else

static int known_ways(void)
{
    return 1;
}

#endif

const Crc32cWay *crc32c_prepare(void)
{
    fill_tables();
    ways[0] = (Crc32cWay){"table", by_tables};
    fastest = ways[known_ways() - 1].extend;
    return ways;
}

uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
    return ~fastest(~crc, data, size);
}
