// Sums over rows of arrays (n_rows, n) of float32, for all n columns at once: in float32 over a block of rows, then in
// double precision, so that the order of summation leaves no trace.

static const int64_t BLOCK = 64;     // rows
static const int64_t COLUMNS = 512;  // at a time

// in: to_weight, var, rho (n_rows, n), bias_var (n). out: sums of to_weight and of the precision for a bias, (2, n).
extern "C" void run_bias_sums(int64_t n_rows, int64_t n, const float* const* in, double* out) {
  for (int64_t left = 0; left < n; left += COLUMNS) {
    const int64_t width = n - left < COLUMNS ? n - left : COLUMNS;
    const float* __restrict bias_var = in[3] + left;
    for (int64_t top = 0; top < n_rows; top += BLOCK) {
      float slope[COLUMNS] = {0.0f}, precision[COLUMNS] = {0.0f};
      const int64_t end = n_rows - top < BLOCK ? n_rows : top + BLOCK;
      for (int64_t row = top; row < end; ++row) {
        const float *__restrict e = in[0] + row * n + left, *__restrict var = in[1] + row * n + left;
        const float* __restrict rho = in[2] + row * n + left;
#pragma omp simd
        for (int64_t k = 0; k < width; ++k) {
          slope[k] += e[k];
          precision[k] += rho[k] / (1.0f + rho[k] * at_least(var[k] - bias_var[k], 0.0f));
        }
      }
      for (int64_t k = 0; k < width; ++k) out[left + k] += slope[k], out[n + left + k] += precision[k];
    }
  }
}

// in: input_var, rho (n_rows, n); where input_var is one number, is_constant. out: sums of weight_curvature (n).
extern "C" void run_curvature_sums(int64_t n_rows, int64_t n, int64_t is_constant, const float* const* in, double* out) {
  for (int64_t left = 0; left < n; left += COLUMNS) {
    const int64_t width = n - left < COLUMNS ? n - left : COLUMNS;
    float spread[COLUMNS];
    for (int64_t k = 0; is_constant && k < width; ++k) spread[k] = in[0][0];
    for (int64_t top = 0; top < n_rows; top += BLOCK) {
      float curvature[COLUMNS] = {0.0f};
      const int64_t end = n_rows - top < BLOCK ? n_rows : top + BLOCK;
      for (int64_t row = top; row < end; ++row) {
        const float *__restrict var = is_constant ? spread : in[0] + row * n + left, *__restrict rho = in[1] + row * n + left;
#pragma omp simd
        for (int64_t k = 0; k < width; ++k) curvature[k] += rho[k] / (1.0f + rho[k] * var[k]);
      }
      for (int64_t k = 0; k < width; ++k) out[left + k] += curvature[k];
    }
  }
}
