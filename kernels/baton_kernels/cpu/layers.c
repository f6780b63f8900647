/* The CPU's fused steps of a transformer layer; baton_kernels/native.py has their contracts, and torch twins define them.
 *
 * No Python and no torch headers: plain pointers come in. Every inner function is compiled for several instruction sets,
 * of which the loader picks one. OpenMP's run-time library is the one that torch has loaded (it is not linked here), so
 * that both share one pool of threads instead of fighting over the cores.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MULTIVERSION __attribute__((noinline, target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define MULTIVERSION __attribute__((noinline))
#endif

typedef uint16_t bfloat16;

static inline float load_bf16(bfloat16 value) {
    union { uint32_t bits; float number; } u = {(uint32_t)value << 16};
    return u.number;
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline bfloat16 store_bf16(float value) {
    union { float number; uint32_t bits; } u = {value};
    uint32_t rounded = (u.bits + 0x7FFF + ((u.bits >> 16) & 1)) >> 16;
    return value != value ? 0x7FC0 : (bfloat16)rounded;
}

static inline float load_f32(float value) { return value; }
static inline float store_f32(float value) { return value; }

/* e^x for x <= 0 within 2 units in the last place, without a branch, so that a loop of it is vectorised. */
static inline float exp_nonpositive(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = rintf(x * 1.44269504f);
    float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    float p = 1.9875691e-4f;
    p = p * r + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 5.0000001e-1f;
    p = p * r * r + r + 1.0f;
    union { int32_t bits; float number; } scale = {((int32_t)n + 127) << 23};
    return p * scale.number;
}

#define DEFINE_KERNELS(NAME, TYPE)                                                                                     \
    MULTIVERSION static void rms_norm_row_##NAME(const TYPE *x, const TYPE *weight, TYPE *out, int hidden, float eps) {   \
        float sum = 0.0f;                                                                                              \
        for (int i = 0; i < hidden; i++) sum += load_##NAME(x[i]) * load_##NAME(x[i]);                                     \
        float scale = 1.0f / sqrtf(sum / (float)hidden + eps);                                                         \
        for (int i = 0; i < hidden; i++) {                                                                             \
            TYPE normed = store_##NAME(load_##NAME(x[i]) * scale);                                                         \
            out[i] = store_##NAME(load_##NAME(normed) * load_##NAME(weight[i]));                                           \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    void baton_rms_norm_##NAME(const TYPE *x, const TYPE *weight, TYPE *out, int64_t rows, int hidden, float eps) {      \
        _Pragma("omp parallel for if (rows >= 32)")                                                                    \
        for (int64_t row = 0; row < rows; row++)                                                                       \
            rms_norm_row_##NAME(x + row * hidden, weight, out + row * hidden, hidden, eps);                              \
    }                                                                                                                  \
                                                                                                                       \
    MULTIVERSION static void rotate_##NAME(const TYPE *x, const TYPE *cosine, const TYPE *sine, TYPE *out, int dim) {      \
        int half = dim / 2;                                                                                            \
        float rotated[512];                                                                                            \
        for (int i = 0; i < half; i++) {                                                                               \
            rotated[i] = load_##NAME(x[i]) * load_##NAME(cosine[i]) + load_##NAME(x[i + half]) * load_##NAME(sine[i]);       \
            rotated[i + half] =                                                                                        \
                load_##NAME(x[i + half]) * load_##NAME(cosine[i + half]) + load_##NAME(x[i]) * load_##NAME(sine[i + half]);  \
        }                                                                                                              \
        for (int i = 0; i < dim; i++) out[i] = store_##NAME(rotated[i]);                                                 \
    }                                                                                                                  \
                                                                                                                       \
    void baton_rotate_and_write_##NAME(TYPE *qkv, const TYPE *cosine, const TYPE *sine, TYPE *pool, const int64_t *rows,   \
                                     int64_t tokens, int heads, int kv_heads, int dim, int block_size, int layer) {    \
        _Pragma("omp parallel for if (tokens >= 32)")                                                                  \
        for (int64_t token = 0; token < tokens; token++) {                                                             \
            TYPE *own = qkv + token * (heads + 2 * kv_heads) * dim;                                                    \
            const TYPE *c = cosine + token * dim, *s = sine + token * dim;                                             \
            for (int h = 0; h < heads; h++) rotate_##NAME(own + h * dim, c, s, own + h * dim, dim);                      \
            for (int h = 0; h < kv_heads; h++) {                                                                       \
                TYPE *key = pool + (rows[token * kv_heads + h] + (int64_t)layer * 2 * block_size) * dim;               \
                rotate_##NAME(own + (heads + h) * dim, c, s, key, dim);                                                  \
                memcpy(key + (int64_t)block_size * dim, own + (heads + kv_heads + h) * dim, sizeof(TYPE) * dim);       \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    MULTIVERSION static void attend_##NAME(const TYPE *query, const TYPE *pool, const int32_t *table, int64_t stride,      \
                                         int context, int group, int dim, int block_size, float scale, float *scratch, \
                                         TYPE *out) {                                                                  \
        float *scores = scratch, *q = scratch + (int64_t)group * context, *sum = q + group * dim;                      \
        for (int i = 0; i < group * dim; i++) q[i] = load_##NAME(query[i]) * scale, sum[i] = 0.0f;                       \
        for (int t = 0; t < context; t++) {                                                                            \
            const TYPE *key = pool + table[t / block_size] * stride + (t % block_size) * dim;                          \
            for (int g = 0; g < group; g++) {                                                                          \
                float dot = 0.0f;                                                                                      \
                for (int d = 0; d < dim; d++) dot += q[g * dim + d] * load_##NAME(key[d]);                               \
                scores[g * context + t] = dot;                                                                         \
            }                                                                                                          \
        }                                                                                                              \
        float total[64];                                                                                               \
        for (int g = 0; g < group; g++) {                                                                              \
            float *row = scores + (int64_t)g * context, best = row[0];                                                 \
            for (int t = 1; t < context; t++) best = row[t] > best ? row[t] : best;                                    \
            float weight = 0.0f;                                                                                       \
            for (int t = 0; t < context; t++) weight += row[t] = exp_nonpositive(row[t] - best);                       \
            total[g] = weight;                                                                                         \
        }                                                                                                              \
        for (int t = 0; t < context; t++) {                                                                            \
            const TYPE *value = pool + table[t / block_size] * stride + (block_size + t % block_size) * dim;           \
            for (int g = 0; g < group; g++) {                                                                          \
                float weight = scores[(int64_t)g * context + t];                                                       \
                for (int d = 0; d < dim; d++) sum[g * dim + d] += weight * load_##NAME(value[d]);                        \
            }                                                                                                          \
        }                                                                                                              \
        for (int i = 0; i < group * dim; i++) out[i] = store_##NAME(sum[i] / total[i / dim]);                            \
    }                                                                                                                  \
                                                                                                                       \
    int baton_paged_decode_##NAME(const TYPE *queries, int64_t query_stride, const TYPE *pool, const int64_t *tokens,   \
                                const int32_t *tables, const int32_t *contexts, int seqs, int table_width, int heads,  \
                                int kv_heads, int layers, int layer, int dim, int block_size, float scale, TYPE *out) { \
        int64_t block_stride = (int64_t)kv_heads * layers * 2 * block_size * dim;                                      \
        int group = heads / kv_heads, failed = 0;                                                                      \
        _Pragma("omp parallel for schedule(dynamic) reduction(| : failed)")                                            \
        for (int pair = 0; pair < seqs * kv_heads; pair++) {                                                           \
            int seq = pair / kv_heads, head = pair % kv_heads;                                                         \
            int context = contexts[seq];                                                                               \
            float *scratch = malloc(sizeof(float) * ((size_t)group * context + 2 * (size_t)group * dim));              \
            if (!scratch) { failed = 1; continue; }                                                                    \
            const TYPE *keys = pool + ((int64_t)head * layers + layer) * 2 * block_size * dim;                         \
            int64_t at = (int64_t)head * group * dim;                                                                  \
            attend_##NAME(queries + tokens[seq] * query_stride + at, keys, tables + (int64_t)seq * table_width,          \
                        block_stride, context, group, dim, block_size, scale, scratch,                                 \
                        out + tokens[seq] * heads * dim + at);                                                         \
            free(scratch);                                                                                             \
        }                                                                                                              \
        return failed;                                                                                                 \
    }

DEFINE_KERNELS(f32, float)
DEFINE_KERNELS(bf16, bfloat16)
