// Products of convolutions with no copies of patches. Images (b, h, w, c) have the channels of a pixel side by side, so
// that a row of a patch, kw * c numbers, lies side by side, too.

#ifdef __AVX512F__
static const int64_t LANES = 16;
#else
static const int64_t LANES = 8;
#endif
typedef float Lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
static const int64_t POSITIONS = 96;  // that are summed before anything is written: what they need stays in the cache

// Where the positions that are summed over lie: `n_rows` rows of `n_columns`, in two images.
struct Positions {
  int64_t n_rows, n_columns, row_z, column_z, row_x, column_x;
};

// to[u * step + k] += sum_p z[p][u] x[p][k] for UNITS u and WIDTH * LANES k.
template <int UNITS, int WIDTH>
INLINE void add_products(const Positions& at, const float* z, const float* x, float* to, int64_t step) {
  Lanes sum[UNITS][WIDTH];
  for (int u = 0; u < UNITS; ++u)
    for (int k = 0; k < WIDTH; ++k) sum[u][k] = Lanes{};
  for (int64_t row = 0; row < at.n_rows; ++row) {
    const float *a = z + row * at.row_z, *b = x + row * at.row_x;
    for (int64_t p = 0; p < at.n_columns; ++p, a += at.column_z, b += at.column_x) {
      Lanes value[WIDTH];
      for (int k = 0; k < WIDTH; ++k) value[k] = *(const Lanes*)(b + k * LANES);
      for (int u = 0; u < UNITS; ++u)
        for (int k = 0; k < WIDTH; ++k) sum[u][k] += a[u] * value[k];
    }
  }
  for (int u = 0; u < UNITS; ++u)
    for (int k = 0; k < WIDTH; ++k) *(Lanes*)(to + u * step + k * LANES) += sum[u][k];
}

template <int WIDTH>
INLINE void add_units(const Positions& at, int64_t n, const float* z, const float* x, float* to, int64_t step) {
  int64_t u = 0;
  for (; n - u >= 6 && n - u != 8; u += 6) add_products<6, WIDTH>(at, z + u, x, to + u * step, step);
  for (; n - u >= 4; u += 4) add_products<4, WIDTH>(at, z + u, x, to + u * step, step);
  for (; u < n; ++u) add_products<1, WIDTH>(at, z + u, x, to + u * step, step);
}

// The same for n units and n_k numbers, a multiple of LANES.
INLINE void add_block(const Positions& at, int64_t n, const float* z, const float* x, float* to, int64_t step,
                      int64_t n_k) {
  int64_t k = 0;
  for (; k + 2 * LANES <= n_k; k += 2 * LANES) add_units<2>(at, n, z, x + k, to + k, step);
  if (k < n_k) add_units<1>(at, n, z, x + k, to + k, step);
}

// A convolution of step 1 without padding: sizes of its input, output and window.
struct Window {
  int64_t h, w, c, oh, ow, o, kh, kw;
};

// sum_p z[p, u] x[p + window] (messages/linear_maps.py: op_weight), over images begin to end. out: (o, kh, kw, c), to be
// added to.
extern "C" void run_conv_to_weight(const Window* window, int64_t begin, int64_t end, const float* z, const float* x,
                                   float* out) {
  const Window& s = *window;
  const int64_t n = s.kw * s.c, block = POSITIONS < s.ow ? 1 : POSITIONS / s.ow;
  for (int64_t b = begin; b < end; ++b)
    for (int64_t y = 0; y < s.oh; y += block) {
      const Positions at = {s.oh - y < block ? s.oh - y : block, s.ow, s.ow * s.o, s.o, s.w * s.c, s.c};
      const float* from = z + (b * s.oh + y) * s.ow * s.o;
      for (int64_t dy = 0; dy < s.kh; ++dy)
        add_block(at, s.o, from, x + (b * s.h + y + dy) * s.w * s.c, out + dy * n, s.kh * n, n);
    }
}

// to[p, k] = sum over n_rows rows, all columns of the window and all o units u of z[p - column, u] weight[row, column, u, k],
// for SIZE neighbouring pixels p and WIDTH * LANES channels k; the first row is the one at z, others lie above it.
template <int SIZE, int WIDTH>
INLINE void pull_pixels(const Window& s, int64_t n_rows, int64_t row_z, const float* z, const float* weight, float* to) {
  Lanes sum[SIZE][WIDTH];
  for (int p = 0; p < SIZE; ++p)
    for (int k = 0; k < WIDTH; ++k) sum[p][k] = Lanes{};
  for (int64_t row = 0; row < n_rows; ++row)
    for (int64_t column = 0; column < s.kw; ++column) {
      const float *a = z - row * row_z - column * s.o, *b = weight + (row * s.kw + column) * s.o * s.c;
      for (int64_t u = 0; u < s.o; ++u, b += s.c) {
        Lanes value[WIDTH];
        for (int k = 0; k < WIDTH; ++k) value[k] = *(const Lanes*)(b + k * LANES);
        for (int p = 0; p < SIZE; ++p)
          for (int k = 0; k < WIDTH; ++k) sum[p][k] += a[p * s.o + u] * value[k];
      }
    }
  for (int p = 0; p < SIZE; ++p)
    for (int k = 0; k < WIDTH; ++k) *(Lanes*)(to + p * s.c + k * LANES) = sum[p][k];
}

// A row of pixels, in tiles of at most six that are as equal as can be.
template <int WIDTH>
INLINE void pull_row(const Window& s, int64_t n_rows, int64_t row_z, const float* z, const float* weight, float* to) {
  const int64_t n_tiles = (s.w + 5) / 6;
  for (int64_t tile = 0, x = 0; tile < n_tiles; ++tile) {
    const int64_t size = (s.w - x) / (n_tiles - tile);
    const float* from = z + x * s.o;
    float* here = to + x * s.c;
    if (size == 6) pull_pixels<6, WIDTH>(s, n_rows, row_z, from, weight, here);
    if (size == 5) pull_pixels<5, WIDTH>(s, n_rows, row_z, from, weight, here);
    if (size == 4) pull_pixels<4, WIDTH>(s, n_rows, row_z, from, weight, here);
    if (size == 3) pull_pixels<3, WIDTH>(s, n_rows, row_z, from, weight, here);
    if (size == 2) pull_pixels<2, WIDTH>(s, n_rows, row_z, from, weight, here);
    if (size == 1) pull_pixels<1, WIDTH>(s, n_rows, row_z, from, weight, here);
    x += size;
  }
}

// The adjoint of the convolution in its input (linear_maps.py: op_input), of images begin to end. z: (b, oh, ow, o);
// weight: (kh, kw, o, c); out: (b, h, w, c); room: (oh, ow + 2 (kw - 1), o), of zeros.
extern "C" void run_conv_to_input(const Window* window, int64_t begin, int64_t end, const float* z, const float* weight,
                                  float* room, float* out) {
  const Window& s = *window;
  const int64_t edge = (s.kw - 1) * s.o, row_z = s.ow * s.o + 2 * edge;
  for (int64_t b = begin; b < end; ++b) {
    for (int64_t y = 0; y < s.oh; ++y)
      memcpy(room + y * row_z + edge, z + (b * s.oh + y) * s.ow * s.o, s.ow * s.o * sizeof(float));
    for (int64_t y = 0; y < s.h; ++y) {
      const int64_t first = y < s.oh ? 0 : y - s.oh + 1, last = y < s.kh ? y + 1 : s.kh;  // rows of the window
      const float *from = room + (y - first) * row_z + edge, *rows = weight + first * s.kw * s.o * s.c;
      float* to = out + (b * s.h + y) * s.w * s.c;
      int64_t k = 0;
      for (; k + 2 * LANES <= s.c; k += 2 * LANES) pull_row<2>(s, last - first, row_z, from, rows + k, to + k);
      if (k < s.c) pull_row<1>(s, last - first, row_z, from, rows + k, to + k);
    }
  }
}

// Pixels 0 to n + size - 2 of a side along which a window of `n` places moves to `size` pixels, in 2 n - 1 pieces, so that
// each place of the window covers n neighbouring ones: single pixels, all that every place covers, single pixels.
INLINE void piece_of(int64_t k, int64_t n, int64_t size, int64_t& first, int64_t& length) {
  first = k < n ? k : k - n + size;
  length = k == n - 1 ? size - n + 1 : 1;
}

// sum_p a a^T over the patches a = x[p + window] of n_images images (linear_maps.py: patch_products). Two entries of a
// patch that lie `down` rows and `across` columns apart have the same products wherever in the patch they are, but for
// pixels at the edges of the images. So products are computed once for each such shift, from begin to end, piece by piece,
// and the pieces added up for each place. room: (2 kh - 1, 2 kw - 1, c, c). out: (kh kw c, kh kw c). oh >= kh, ow >= kw.
extern "C" void run_patch_products(const Window* window, int64_t begin, int64_t end, int64_t n_images, const float* x,
                                   float* room, float* out) {
  const Window& s = *window;
  const int64_t row = s.w * s.c, image = s.h * row, cc = s.c * s.c, step = s.kh * s.kw * s.c;
  for (int64_t shift = begin; shift < end; ++shift) {
    const int64_t later = shift + s.kw - 1, down = later / (2 * s.kw - 1), across = later % (2 * s.kw - 1) - s.kw + 1;
    const int64_t n_y = s.kh - down, n_x = s.kw - (across < 0 ? -across : across), left = across < 0 ? -across : 0;
    const int64_t wide = 2 * n_x - 1;
    const float *z = x + left * s.c, *moved = z + down * row + across * s.c;
    memset(room, 0, (2 * n_y - 1) * wide * cc * sizeof(float));
    for (int64_t i = 0; i < 2 * n_y - 1; ++i)
      for (int64_t j = 0; j < wide; ++j) {
        int64_t top, height, side, width;
        piece_of(i, n_y, s.oh, top, height);
        piece_of(j, n_x, s.ow, side, width);
        const int64_t at = top * row + side * s.c;
        float* to = room + (i * wide + j) * cc;
        if (height == 1 || width == 1) {  // too little of one image
          const Positions all = {height == 1 ? n_images : height, height == 1 ? width : n_images,
                                 height == 1 ? image : row,       height == 1 ? s.c : image,
                                 height == 1 ? image : row,       height == 1 ? s.c : image};
          add_block(all, s.c, z + at, moved + at, to, s.c, s.c);
          continue;
        }
        const int64_t block = POSITIONS < width ? 1 : POSITIONS / width;
        for (int64_t b = 0; b < n_images; ++b)
          for (int64_t y = 0; y < height; y += block) {
            const Positions some = {height - y < block ? height - y : block, width, row, s.c, row, s.c};
            const int64_t from = at + b * image + y * row;
            add_block(some, s.c, z + from, moved + from, to, s.c, s.c);
          }
      }
    for (int64_t dy = 0; dy < n_y; ++dy)
      for (int64_t dx = 0; dx < n_x; ++dx) {
        const int64_t one = (dy * s.kw + left + dx) * s.c, other = ((dy + down) * s.kw + left + dx + across) * s.c;
        for (int64_t u = 0; u < s.c; ++u) {
          float* to = out + (one + u) * step + other;
          for (int64_t k = 0; k < s.c; ++k) to[k] = 0.0f;
          for (int64_t i = dy; i < dy + n_y; ++i)
            for (int64_t j = dx; j < dx + n_x; ++j) {
              const float* from = room + (i * wide + j) * cc + u * s.c;
#pragma omp simd
              for (int64_t k = 0; k < s.c; ++k) to[k] += from[k];
            }
        }
        for (int64_t k = 0; k < s.c; ++k)
          for (int64_t u = 0; u < s.c; ++u) out[(other + k) * step + one + u] = out[(one + u) * step + other + k];
      }
  }
}
