// The inverse metric of a small layer applied to a slope (training/schedules/metric.py, solve_blocks) in one call, because there it
// is calls, not numbers, that cost. Blocks of columns (o, widths[k]) stand side by side. in: slope_vectors (o, o),
// input_vectors (i, i), inverse (o, i), then the blocks of the slope; out: the blocks of the answer.

static const int64_t SMALL_SIDE = 32;  // of o and i, at most, as in metric.py

extern "C" void run_solve_small(int64_t o, int64_t i, int64_t n_blocks, const int64_t* widths, const float* const* in,
                                float* const* out) {
  const float *__restrict g = in[0], *__restrict a = in[1], *__restrict inverse = in[2];
  float slope[SMALL_SIDE][SMALL_SIDE], turned[SMALL_SIDE][SMALL_SIDE];
  for (int64_t k = 0, start = 0; k < n_blocks; start += widths[k++])
    for (int64_t r = 0; r < o; ++r)
      for (int64_t c = 0; c < widths[k]; ++c) slope[r][start + c] = in[3 + k][r * widths[k] + c];
  for (int64_t r = 0; r < o; ++r) {  // G^T slope
    for (int64_t c = 0; c < i; ++c) turned[r][c] = 0.0f;
    for (int64_t l = 0; l < o; ++l)
#pragma omp simd
      for (int64_t c = 0; c < i; ++c) turned[r][c] += g[l * o + r] * slope[l][c];
  }
  for (int64_t r = 0; r < o; ++r) {  // (G^T slope A) inverse
    for (int64_t c = 0; c < i; ++c) slope[r][c] = 0.0f;
    for (int64_t l = 0; l < i; ++l)
#pragma omp simd
      for (int64_t c = 0; c < i; ++c) slope[r][c] += turned[r][l] * a[l * i + c];
    for (int64_t c = 0; c < i; ++c) slope[r][c] *= inverse[r * i + c];
  }
  for (int64_t r = 0; r < o; ++r) {  // G of that
    for (int64_t c = 0; c < i; ++c) turned[r][c] = 0.0f;
    for (int64_t l = 0; l < o; ++l)
#pragma omp simd
      for (int64_t c = 0; c < i; ++c) turned[r][c] += g[r * o + l] * slope[l][c];
  }
  for (int64_t k = 0, start = 0; k < n_blocks; start += widths[k++])  // times A^T
    for (int64_t r = 0; r < o; ++r)
      for (int64_t c = 0; c < widths[k]; ++c) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t l = 0; l < i; ++l) sum += turned[r][l] * a[(start + c) * i + l];
        out[k][r * widths[k] + c] = sum;
      }
}
