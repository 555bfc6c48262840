// Shares out the work of one call over a few persistent threads, a team.
//
// The caller works too, and helpers only take rows that are not begun, so a helper that comes late is not waited for;
// one that loses its core amid its rows is. A helper that was of use spins for its next call, as long as a host takes
// between two iterations, and then sleeps: through an iteration each is woken once. One call at a time has the team; a
// second one that comes meanwhile does its rows alone. Where the team is slower than the caller alone, as beside other
// busy programs, calls leave it be for a while. Results must not depend on who does what. Safe after fork.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

namespace weft {

// What is left of a call's rows: each worker claims ranges until there are none.
class Claims {
 public:
  Claims(std::int64_t rows, std::int64_t chunk) : rows_(rows), chunk_(chunk) {}

  bool next(std::int64_t &begin, std::int64_t &end) {
    begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
    end = begin + chunk_ < rows_ ? begin + chunk_ : rows_;
    return begin < rows_;
  }

 private:
  const std::int64_t rows_, chunk_;
  std::atomic<std::int64_t> next_{0};
};

using WorkFunction = void (*)(void *context, Claims &claims);

// Calls fn(context, claims) on at most `threads` threads, the caller among them, which together claim [0, rows). `cost`
// is that of a row, in some twentieths of a nanosecond: bytes read from far away, or products.
void for_workers(std::int64_t rows, int threads, std::int64_t cost, WorkFunction fn, void *context);

template <class F>
void for_workers(std::int64_t rows, int threads, std::int64_t cost, F &&fn) {
  using Fn = std::remove_reference_t<F>;
  for_workers(rows, threads, cost, [](void *f, Claims &claims) { (*static_cast<Fn *>(f))(claims); }, &fn);
}

// Calls fn(begin, end) over disjoint ranges that cover [0, rows).
template <class F>
void for_rows(std::int64_t rows, int threads, std::int64_t cost, F &&fn) {
  for_workers(rows, threads, cost, [&fn](Claims &claims) {
    for (std::int64_t begin, end; claims.next(begin, end);) fn(begin, end);
  });
}

}  // namespace weft
