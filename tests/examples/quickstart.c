/* Normalizes and quantizes four rows to NVFP4 on the CPU, with the bytes that the GPU kernel writes. */
#include <normquant/normquant.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRows = 4, kHidden = 64 };

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

int main(void) {
    nq_problem problem = NQ_PROBLEM_INIT; /* NVFP4, bf16 rows, linear scales */
    problem.hidden = kHidden;

    size_t fp4_bytes = 0, scale_bytes = 0;
    if (nq_fp4_bytes(&problem, kRows, &fp4_bytes) != NQ_OK || nq_scale_bytes(&problem, kRows, &scale_bytes) != NQ_OK) {
        fprintf(stderr, "%s\n", nq_last_error());
        return 1;
    }

    uint16_t *x = malloc(kRows * kHidden * sizeof *x), *weight = malloc(kHidden * sizeof *weight);
    unsigned char *fp4 = malloc(fp4_bytes), *scales = malloc(scale_bytes);
    float global_scale = 448.0f * 6.0f / 4.0f; /* for |y| up to 4 */
    if (!x || !weight || !fp4 || !scales) return 1;
    for (int i = 0; i < kRows * kHidden; ++i) x[i] = to_bf16((float)(i * 37 % 101 - 50) / 16);
    for (int i = 0; i < kHidden; ++i) weight[i] = to_bf16(1.0f);

    nq_tensors tensors = NQ_TENSORS_INIT;
    tensors.rows = kRows;
    tensors.x = x;
    tensors.weight = weight;
    tensors.global_scale = &global_scale;
    tensors.fp4 = fp4;
    tensors.scales = scales;
    if (nq_reference(&problem, &tensors, 0) != NQ_OK) {
        fprintf(stderr, "%s\n", nq_last_error());
        return 1;
    }

    for (int row = 0; row < kRows; ++row) {
        printf("row %d: scales", row);
        for (int i = 0; i < kHidden / 16; ++i) printf(" %02x", scales[row * (kHidden / 16) + i]);
        printf(", first codes");
        for (int i = 0; i < 8; ++i) printf(" %02x", fp4[row * (kHidden / 2) + i]);
        printf("\n");
    }
    free(x);
    free(weight);
    free(fp4);
    free(scales);
    return 0;
}
