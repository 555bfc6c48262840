// The table of products of quantised weights with int8 rows. int8.cpp includes this once for each instruction set
// (WEFT_TARGET), after int8_round.h and the products of the set: those of int8_plain.h or of int8_tiles.h.
//
// For each 32 inputs, sums of codes are exact integers. Then a product adds float32 numbers in the order of inputs:
//
//   sum = fma(float(integer) * row's scale, scale, sum)       and with mins:  sum = fma(min, row's scaled sum, sum)
//
// So all instruction sets give the same bits, for any number of rows.

constexpr std::int64_t kInt8Speed = WEFT_TARGET == 512 ? 2 : 1;

template <Format kFormat>
constexpr PanelKernel int8_kernel() {
  if constexpr (int8_format(kFormat).max_code > 0) return {times_int8_panel<kFormat>, int8_scratch, kInt8Speed};
  return {};
}

template <int... kFormats>
constexpr Int8Kernels int8_kernels(std::integer_sequence<int, kFormats...>) {
  return {{int8_kernel<static_cast<Format>(kFormats)>()...}, {kInt8Group, kInt8Group, int8_bytes, round_rows}};
}

constexpr Int8Kernels kInt8Kernels = int8_kernels(std::make_integer_sequence<int, kNumFormats>());
