// Shares out the rows of one call over a few persistent threads.
//
// The caller works too, and helpers only take rows that are not begun, so a helper that comes late is not waited
// for; one that loses its core amid its rows is. One call at a time has the helpers; a second one that comes meanwhile
// does its rows alone. Safe after fork.
#pragma once

#include <cstdint>
#include <type_traits>

namespace weft {

using RowFunction = void (*)(void *context, std::int64_t begin, std::int64_t end);

// Calls fn(context, begin, end) over disjoint ranges that cover [0, rows), on at most `threads` threads.
void for_rows(std::int64_t rows, int threads, RowFunction fn, void *context);

template <class F>
void for_rows(std::int64_t rows, int threads, F &&fn) {
  using Fn = std::remove_reference_t<F>;
  for_rows(
      rows, threads, [](void *f, std::int64_t begin, std::int64_t end) { (*static_cast<Fn *>(f))(begin, end); }, &fn);
}

}  // namespace weft
