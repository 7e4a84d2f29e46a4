/*
 * CRC-32C of pieces of a GPU's memory, by tables.
 *
 * One warp takes one piece at a time. The bytes of a piece lie in rows of 512 bytes. Each of the 32
 * lanes has 16 bytes of a row, four words, so a row is one read of consecutive memory. A lane keeps a
 * CRC register for each of its words, and moves it over a row by four lookups:
 *
 *     register = T[register] ^ word        T: the register after 512 bytes of zeros
 *
 * A CRC is linear: the piece's is the XOR of all registers, each moved to the end of the piece. Zeros
 * in front of a piece change nothing of a register that is 0, so the first row is filled with them.
 *
 * The register begins at 0 and is not inverted at the end: the host puts pieces together (../sums.rs).
 *
 * NVRTC compiles it (./compile), and for tests a C compiler with -DON_CPU, which runs the lanes one
 * after another (connector/gpu-check/tests/fake_cuda.c).
 */
#ifndef ON_CPU
#define DEVICE static __device__ __forceinline__
#define IN_GPU_MEMORY static __device__
#define SHARED __shared__
#define UNROLL _Pragma("unroll")
#define ALIGNED_16 __align__(16)
#define PUT_XOR_OF_LANES(to, value, lane)                              \
    do {                                                               \
        const u32 of_all = __reduce_xor_sync(0xffffffffu, value);      \
        if ((lane) == 0) *(to) = of_all;                               \
    } while (0)
#else
#define DEVICE static inline
#define IN_GPU_MEMORY static
#define SHARED static
#define UNROLL
#define ALIGNED_16 __attribute__((aligned(16), may_alias))
#define PUT_XOR_OF_LANES(to, value, lane) (*(to) = ((lane) ? *(to) : 0) ^ (value))
#endif

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define LANES 32
#define WORDS 4
#define LANE_BYTES (WORDS * 4)
#define ROW_BYTES (LANES * LANE_BYTES)
/* One table: what each of the four bytes of a register becomes. */
#define TABLE 1024
/* For a word, for a row, and for the 16, 32, 64, 128 and 256 bytes of so many lanes. */
#define TABLES 7
#define OF_WORD 0
#define OF_ROW 1
#define OF_LANES 2
/* Castagnoli, its bits reversed. */
#define POLYNOMIAL 0x82f63b78u
/* Copies of the row's table in shared memory: lanes that look up different words of one bank wait for
 * each other, so lanes use different copies, in different banks. */
#define COPIES 8
/* Rows that a lane reads before it needs the first: reads take hundreds of cycles. */
#define AHEAD 4

struct piece {
    u64 address;
    u64 bytes;
};

/* Aligned, so that it is one read. */
struct ALIGNED_16 words {
    u32 word[WORDS];
};

/* Of each GPU, made once. */
IN_GPU_MEMORY u32 tables[TABLES * TABLE];

SHARED u32 row_table[TABLE * COPIES];

DEVICE void make_table(u32 table, u32 entry) {
    const u32 zeros = table == OF_WORD ? 4 : table == OF_ROW ? ROW_BYTES : LANE_BYTES << (table - OF_LANES);
    u32 crc = (entry & 255) << (8 * (entry >> 8));
    for (u32 bit = 0; bit < 8 * zeros; bit++) crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
    tables[table * TABLE + entry] = crc;
}

DEVICE u32 moved(const u32 *table, u32 stride, u32 crc) {
    return table[(crc & 255) * stride] ^ table[(256 + (crc >> 8 & 255)) * stride] ^
           table[(512 + (crc >> 16 & 255)) * stride] ^ table[(768 + (crc >> 24)) * stride];
}

/* 16 bytes at that place of a piece, byte by byte; in front of the piece are zeros. */
DEVICE struct words words_at(const u8 *piece, long long at) {
    struct words words;
    for (int i = 0; i < WORDS; i++) {
        u32 word = 0;
        for (int byte = 0; byte < 4; byte++) {
            long long from = at + i * 4 + byte;
            if (from >= 0) word |= (u32)piece[from] << (8 * byte);
        }
        words.word[i] = word;
    }
    return words;
}

DEVICE void add(u32 *crc, const u32 *table, struct words words) {
    UNROLL for (int i = 0; i < WORDS; i++)
        crc[i] = moved(table, COPIES, crc[i]) ^ words.word[i];
}

/* What one lane adds to the CRC of a piece. */
DEVICE u32 of_lane(const u8 *piece, u64 bytes, u32 lane) {
    const u32 *table = row_table + lane % COPIES;
    const u64 rows = (bytes + ROW_BYTES - 1) / ROW_BYTES;
    long long at = (long long)bytes - (long long)(rows * ROW_BYTES) + lane * LANE_BYTES;
    u32 crc[WORDS] = {0, 0, 0, 0};
    u64 row = 0;
    if (rows > 0) {
        add(crc, table, words_at(piece, at));
        at += ROW_BYTES;
        row = 1;
    }
    if (((u64)piece + bytes) % LANE_BYTES == 0) {
        for (; row + AHEAD <= rows; row += AHEAD, at += AHEAD * ROW_BYTES) {
            struct words ahead[AHEAD];
            UNROLL for (int i = 0; i < AHEAD; i++)
                ahead[i] = *(const struct words *)(piece + at + i * ROW_BYTES);
            UNROLL for (int i = 0; i < AHEAD; i++) add(crc, table, ahead[i]);
        }
    }
    for (; row < rows; row++, at += ROW_BYTES) add(crc, table, words_at(piece, at));

    /* To the end of the lane's 16 bytes, then over those of the lanes behind it. */
    u32 sum = 0;
    for (int i = 0; i < WORDS; i++) sum = moved(tables + OF_WORD * TABLE, 1, sum ^ crc[i]);
    for (int bit = 0; bit < 5; bit++)
        if ((LANES - 1 - lane) >> bit & 1) sum = moved(tables + (OF_LANES + bit) * TABLE, 1, sum);
    return sum;
}

DEVICE void fill_row_table(u32 thread, u32 threads) {
    for (u32 i = thread; i < TABLE * COPIES; i += threads)
        row_table[i] = tables[OF_ROW * TABLE + i / COPIES];
}

DEVICE void sum_pieces(u32 lane, u32 warp, u32 warps, const struct piece *pieces, u32 count, u32 *sums) {
    for (u32 i = warp; i < count; i += warps) {
        const u32 sum = of_lane((const u8 *)pieces[i].address, pieces[i].bytes, lane);
        PUT_XOR_OF_LANES(sums + i, sum, lane);
    }
}

#ifndef ON_CPU
/* Launched once, with a block for each table and a thread for each entry. */
extern "C" __global__ void __launch_bounds__(TABLE) rackline_crc32c_tables(void) {
    make_table(blockIdx.x, threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(512)
    rackline_crc32c(const struct piece *pieces, u32 count, u32 *sums) {
    const u32 warps = blockDim.x / LANES;
    fill_row_table(threadIdx.x, blockDim.x);
    __syncthreads();
    sum_pieces(threadIdx.x % LANES, blockIdx.x * warps + threadIdx.x / LANES, gridDim.x * warps, pieces,
               count, sums);
}
#endif
