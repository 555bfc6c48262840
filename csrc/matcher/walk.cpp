#include "matcher/walk.h"

#include "support/thread_time.h"

namespace weft {
namespace {

template <class Call>
int run(std::vector<std::int64_t> &times, bool timed, Call call) {
  if (!timed) return call();
  const std::int64_t start = thread_cpu_ns();
  const int outcome = call();
  times.push_back(thread_cpu_ns() - start);
  return outcome;
}

bool allows(const std::int32_t *row, int words, std::int32_t token) {
  return token >= 0 && token / 32 < words && (static_cast<std::uint32_t>(row[token / 32]) >> (token % 32) & 1u) != 0;
}

}  // namespace

Walk walk(MatcherHandle &matcher, const std::vector<std::int32_t> &tokens, std::int32_t *row, int words, bool timed) {
  Walk done;
  if (timed) done.fill_ns.reserve(tokens.size()), done.accept_ns.reserve(tokens.size());
  for (const std::int32_t token : tokens) {
    if (run(done.fill_ns, timed, [&] { return matcher.fill(row, words); }) < 0) return done.failed = true, done;
    const int outcome = run(done.accept_ns, timed, [&] { return matcher.accept(token); });
    if (outcome < 0) return done.failed = true, done;
    done.disagreements += allows(row, words, token) != (outcome > 0);
    if (outcome == 0) return done;
    ++done.taken;
    ++matcher.position;
  }
  return done;
}

}  // namespace weft
