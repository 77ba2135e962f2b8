// Small networks: all that happens at one row of a batch in one go, because there it is calls, not numbers, that cost.

// messages/likelihood.py, argmax_to_latent. in: mean, var (n, c). out: tau, rho (2, n, c).
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
