// Small networks: all that happens at one row of a batch in one go, because there it is calls, not numbers, that cost.

// The way back through an inner product with each term treated apart (equations/linear.py), at marginals. in: mean and
// var of the inputs (n, n_in), of the weights (n_out, n_in), mean, var and input_var of the sums (n, n_out), tau and rho
// arriving there, bias_var (n_out). is_known: inputs have no variance, and hear nothing. is_constant: input_var is one
// number. to_weight: tau and rho (2, n_out, n_in), to be added to, as is sums: slope, rho and curvature (3, n_out) of
// unit_sums. to_input: tau and rho (2, n, n_in).
extern "C" void run_exact_back(int64_t n, int64_t n_out, int64_t n_in, int64_t is_known, int64_t is_constant,
                               const float* const* in, double* to_weight, double* sums, float* to_input) {
  for (int64_t row = 0; row < n; ++row) {
    const float *__restrict a = in[0] + row * n_in, *__restrict a_var = in[1] + (is_known ? 0 : row * n_in);
    float *__restrict in_tau = to_input + row * n_in, *__restrict in_rho = to_input + (n + row) * n_in;
    for (int64_t o = 0; o < n_out; ++o) {
      const float *__restrict w = in[2] + o * n_in, *__restrict w_var = in[3] + o * n_in;
      const int64_t at = row * n_out + o;
      const float var = in[5][at], input_var = in[6][is_constant ? 0 : at], rho = in[8][at];
      const float slope = in[7][at] - rho * in[4][at], shrink = 1.0f / (1.0f + rho * input_var), e = slope * shrink;
      double *__restrict w_tau = to_weight + o * n_in, *__restrict w_rho = to_weight + (n_out + o) * n_in;
      sums[o] += e;
      sums[n_out + o] += rho / (1.0f + rho * at_least(var - in[9][o], 0.0f));
      sums[2 * n_out + o] += rho * shrink;
#pragma omp simd
      for (int64_t i = 0; i < n_in; ++i) {
        const float v = is_known ? 0.0f : a_var[i], second = a[i] * a[i] + v, own = a[i] * w[i];
        const float inv = 1.0f / (1.0f + rho * at_least(var - (v * w[i] * w[i] + second * w_var[i]), 0.0f));
        const float r = rho * inv, t = slope * inv + r * own;
        w_tau[i] += (e + r * own) * a[i];
        w_rho[i] += r * second;
        if (!is_known) in_tau[i] += t * w[i], in_rho[i] += r * (w[i] * w[i] + w_var[i]);
      }
    }
  }
}

// equations/likelihood.py, argmax_to_latent. in: mean, var (n, c). out: tau, rho (2, n, c).
extern "C" void run_argmax_to_latent(int64_t n, int64_t c, const int64_t* y, const float* const* in, float* out,
                                     float noise, float pull, float own_rho) {
  for (int64_t row = 0; row < n; ++row) {
    const float *__restrict mean = in[0] + row * c, *__restrict var = in[1] + row * c;
    float *__restrict tau = out + row * c, *__restrict rho = out + (n + row) * c;
    const float true_mean = mean[y[row]], true_var = var[y[row]];
    float true_tau = 0.0f, true_rho = 0.0f;
#pragma omp simd reduction(+ : true_tau, true_rho)
    for (int64_t i = 0; i < c; ++i) {
      const float pair_var = true_var + var[i] + noise, inv = 1.0f / pair_var, x = score(true_mean - mean[i], pair_var);
      const float u = fabsf(x), d = excess(u), pdf = normal_pdf(u), beyond = pdf / (u + d), cdf = 1.0f - beyond;
      const float h_right = pdf / cdf, k_right = h_right * (x + h_right), rest_left = cut_var(u, d);
      const float h = x < 0.0f ? u + d : h_right, k = x < 0.0f ? 1.0f - rest_left : k_right;
      const float rest = x < 0.0f ? rest_left : 1.0f - k_right, loses = x < 0.0f ? cdf : beyond;
      const float first = h * rsqrtf(pair_var), curvature = k * inv;
      const float to_true = pair_var / (var[i] + noise + true_var * rest);
      const float to_other = loses * pair_var / (true_var + noise + var[i] * rest);
      const float counts = i == y[row] ? 0.0f : 1.0f;
      true_tau += counts * to_true * (first + true_mean * curvature);
      true_rho += counts * to_true * curvature;
      tau[i] = to_other * (mean[i] * curvature - first) - pull;
      rho[i] = to_other * curvature + own_rho;
    }
    tau[y[row]] = true_tau + pull;
    rho[y[row]] = true_rho + own_rho;
  }
}
