// Includes the file WEFT_INNER_LOOPS once for each instruction set: in namespace plain, and on x86-64 in avx2 and
// avx512. WEFT_TARGET is the number of bits in a vector of the set, 0 without vectors. WEFT_HAS_TARGETS is defined if
// there are other namespaces than plain. A .cpp file includes this once, inside a namespace. So there is no include
// guard.

namespace plain {
#define WEFT_TARGET 0
#include WEFT_INNER_LOOPS
#undef WEFT_TARGET
}  // namespace plain

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WEFT_HAS_TARGETS 1
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
#define WEFT_TARGET 256
#include WEFT_INNER_LOOPS
#undef WEFT_TARGET
}  // namespace avx2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,prefer-vector-width=512")
namespace avx512 {
#define WEFT_TARGET 512
#include WEFT_INNER_LOOPS
#undef WEFT_TARGET
}  // namespace avx512
#pragma GCC pop_options
#endif
