// CPU kernels of a decoder for rows of activations between the linear layers. With `live`, a kernel reads and writes
// only the first *live rows.
#pragma once

#include <cstdint>

#include "kernels/layer/formats.h"

namespace weft {

// How a matrix of embeddings is stored: as rows, of blocks if it is quantised, or as the panels or tiles of a linear
// layer that shares it (linear.h).
enum class EmbedLayout { kRows, kPanels, kTiles };

// out[r] = weight[tokens[r]] * scale, in float32. Ids outside [0, vocab) are clamped.
struct EmbedCall {
  const void *weight;  // [vocab, width] in `layout`
  Format format;       // tiles are bfloat16
  EmbedLayout layout;
  const std::int64_t *tokens;
  float *out;
  std::int64_t rows, vocab, width;
  float scale;
  const std::int64_t *live;  // or null
};
void embed_cpu(const EmbedCall &call);

// out[r] is the embedding of tokens[r] followed by hidden[r], each normalised with its own norm (EAGLE3 and MTP
// drafters).
struct JoinCall {
  EmbedCall embed;  // its `out` is [rows, 2 * width]
  const float *hidden, *embed_norm, *hidden_norm;
  std::int64_t hidden_row;
  float embed_eps, hidden_eps;
};
void join_norms_cpu(const JoinCall &call);

// out[b] = x[b, index[b]] of x [rows, width, size]. Indices outside [0, width) are clamped.
struct TakeCall {
  const float *x;
  const std::int64_t *index;
  float *out;
  std::int64_t rows, width, size;
  const std::int64_t *live;  // or null
};
void take_rows_cpu(const TakeCall &call);

// to = from, for tensors of the same shape of up to 4 dimensions; strides in bytes. Missing leading dimensions have
// size 1. `live` is for tensors of 2 dimensions.
struct StridedCopy {
  void *to;
  const void *from;
  std::int64_t sizes[4], to_strides[4], from_strides[4];
  std::int64_t element;      // bytes
  const std::int64_t *live;  // or null
};
void copy_cpu(const StridedCopy &call);

}  // namespace weft
