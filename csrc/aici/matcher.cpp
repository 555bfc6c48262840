#include "aici/matcher.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <new>
#include <utility>

#include "aici/base/limits.h"
#include "aici/history.h"
#include "aici/host/guest_pool.h"
#include "aici/host/instance.h"
#include "aici/position.h"
#include "grammar/after/rules.h"
#include "matcher/no_throw.h"

namespace weft::aici {
namespace {

// A matcher made of an instance and its history. Calls that need no step of the program run on the caller's thread.
class ProgramMatcher {
 public:
  ProgramMatcher(std::shared_ptr<const Program> program, std::string argument, std::shared_ptr<Variables> variables)
      : program_(std::move(program)),
        instance_(make_host(program_, std::move(argument), variables)),
        history_(std::move(variables), program_->limits) {}

  void start(const std::vector<std::int32_t> &prompt) {
    try {
      run_as_guest([&] {
        instance_.host.time.begin(program_->limits.start_ms, "start_ms", "to start");
        instance_.instantiate();
        instance_.create();
        Position first = begin(instance_, prompt);
        history_.start(instance_, std::move(first), std::exchange(instance_.host.writes, {}));
      });
    } catch (...) {
      undo_open_writes();
      throw;
    }
    publish_log();
  }

  // Writes of a step that neither ended nor could be undone become permanent.
  ~ProgramMatcher() { instance_.host.variables->keep(instance_.host.writes); }
  ProgramMatcher(const ProgramMatcher &) = delete;
  ProgramMatcher &operator=(const ProgramMatcher &) = delete;

  int accept(std::int32_t token) {
    replacement_.reset();
    if (!takes(token)) return 0;
    Transition transition = transition_of(*program_, position(), token);
    history_.open();
    try {
      if (transition.needs_step) run(transition);
    } catch (...) {
      history_.drop();
      throw;
    }
    history_.close(std::move(transition.next));
    if (transition.needs_step) publish_log();
    if (!transition.replaces) return 1;
    replacement_ = std::move(transition.replacement);
    return 2;
  }

  int validate(const std::int32_t *tokens, int count) {
    const History::Trial trial(history_);
    int accepted = 0;
    try {
      // For the last token, only check that it is allowed; that needs no step of the program.
      int outcome = 1;
      while (outcome == 1 && accepted + 1 < count) {
        if ((outcome = accept(tokens[accepted])) == 0) break;
        trial.check(++accepted);
      }
      const int count_taken = accepted + (outcome == 1 && accepted < count && takes(tokens[accepted]));
      rollback(accepted);
      return count_taken;
    } catch (...) {
      const std::exception_ptr raised = std::current_exception();
      rollback(accepted);
      std::rethrow_exception(raised);
    }
  }

  int fill(std::int32_t *row, int words) const { return position().fill(*program_, row, words), 1; }

  // A rollback needs no time limit: it writes back pages that steps saved within their own limits. If it needs a new
  // instance, the limit of a start applies to that.
  int rollback(int count) {
    return undo([&] { return history_.undo(count); }), 0;
  }
  int reset() {
    return undo([&] { return history_.undo_all(); }), 0;
  }

  std::unique_ptr<ProgramMatcher> fork() {
    check_usable();
    const Host &host = instance_.host;
    auto copy = std::make_unique<ProgramMatcher>(program_, host.argument, host.variables);
    copy->instance_.handle = instance_.handle;
    copy->instance_.host.log = host.log;
    copy->instance_.host.log_dropped = host.log_dropped;
    run_as_guest([&] { history_.copy_to(copy->history_, copy->instance_); });
    copy->publish_log();
    return copy;
  }

  int edit(int *drop, std::int32_t *append, int capacity) {
    if (!replacement_) throw ProgramError("the last token was not replaced");
    if (replacement_->size() > static_cast<std::size_t>(std::max(capacity, 0)))
      throw ProgramError("an edit of " + std::to_string(replacement_->size()) + " tokens, where there is room for " +
                         std::to_string(capacity));
    *drop = 1;
    std::copy(replacement_->begin(), replacement_->end(), append);
    return static_cast<int>(replacement_->size());
  }

  const Position &position() const { return history_.position(); }

  std::size_t undo_bytes() const { return history_.num_bytes(); }

  // `log` and `report` may be called on any thread, at any time.
  std::string log() const {
    std::lock_guard<std::mutex> lock(log_mutex_);
    return published_log_;
  }
  Report report(std::int64_t num_tokens) const {
    Report report;
    {
      std::lock_guard<std::mutex> lock(log_mutex_);
      std::uint64_t total = marks_.empty() ? published_total_ : marks_.front().log_total;
      for (const Mark &mark : marks_)
        if (mark.num_tokens <= num_tokens) total = mark.log_total;
      const std::uint64_t beyond =
          std::min<std::uint64_t>(published_total_ - std::min(total, published_total_), published_log_.size());
      report.log = published_log_.substr(0, published_log_.size() - beyond);
    }
    const auto limit = static_cast<std::size_t>(program_->limits.log_bytes);
    if (report.log.size() > limit) report.log.erase(0, report.log.size() - limit);
    const Host &host = instance_.host;
    report.variables = host.variables->values_without({host.sequence, num_tokens});
    return report;
  }

  std::string error;

 private:
  static Host make_host(const std::shared_ptr<const Program> &program, std::string argument,
                        const std::shared_ptr<Variables> &variables) {
    Host host;
    host.program = program;
    host.argument = std::move(argument);
    host.sequence = variables->next_sequence();
    host.variables = variables;
    return host;
  }

  void check_usable() const {
    if (!broken_.empty()) throw ProgramError(broken_);
  }

  bool takes(std::int32_t token) const {
    check_usable();
    return position().takes(*program_, token);
  }

  // Undoes the writes of a step that has not ended.
  void undo_open_writes() {
    instance_.host.variables->undo(instance_.host.writes);
    instance_.host.writes.clear();
  }

  // Runs a step of the program. If it throws, only the instance has changed, and the next use restores it.
  void run(Transition &transition) {
    run_as_guest([&] {
      try {
        instance_.host.writes.clear();
        restore(is_stale_);
        instance_.host.time.begin(program_->limits.step_ms, "step_ms", "for one step");
        transition.next = run_step(instance_, std::move(transition.next), transition.new_tokens, transition.sampled);
        history_.follow(instance_);
        instance_.host.time.check();
      } catch (...) {
        const std::exception_ptr raised = std::current_exception();
        or_break([&] {
          is_stale_ = true;
          undo_open_writes();
          instance_.host.cut_log(position().log_total);
        });
        std::rethrow_exception(raised);
      }
    });
  }

  // Undoes tokens: `body` undoes them in the history, and then this restores the instance.
  template <class Body>
  void undo(Body body) {
    check_usable();
    bool has_changed = false;
    try {
      has_changed = body();
    } catch (const ProgramError &) {
      throw;  // the history refused, and nothing has changed
    } catch (const std::exception &problem) {
      break_with(problem);
    }
    replacement_.reset();
    if (!has_changed) return;
    or_break([&] {
      instance_.host.cut_log(position().log_total);
      if (history_.needs_guest(instance_)) {
        run_as_guest([&] { restore(true); });
      } else {
        restore(true);
      }
    });
    publish_log();
  }

  void restore(bool is_needed) {
    if (!is_needed) return;
    history_.restore(instance_, std::exchange(is_stale_, false));
  }

  // Runs a part of an undo that can't itself be undone. If it fails, the matcher refuses all further calls.
  template <class Body>
  void or_break(Body body) {
    try {
      body();
    } catch (const std::exception &problem) {
      break_with(problem);
    }
  }

  [[noreturn]] void break_with(const std::exception &problem) {
    broken_ = "out of memory";  // short enough to need no allocation, in case the next line fails
    broken_ = std::string("tokens could not be taken back: ") + problem.what();
    throw ProgramError(broken_);
  }

  // Copies the log for readers on other threads, and records where it ends after this token.
  void publish_log() noexcept {
    const std::uint64_t log_total = instance_.host.log_total();
    const std::int64_t num_tokens = position().num_tokens;
    std::lock_guard<std::mutex> lock(log_mutex_);
    try {
      if (published_total_ != log_total) {
        published_log_ = instance_.host.log;
        published_total_ = log_total;
      }
      const auto is_undone = [&](const Mark &mark) {
        return mark.num_tokens > num_tokens || mark.log_total > log_total;
      };
      while (!marks_.empty() && is_undone(marks_.back())) marks_.pop_back();
      if (marks_.size() == kMaxMarks) marks_.pop_front();
      marks_.push_back({num_tokens, log_total});
    } catch (const std::bad_alloc &) {
      // Ignore it: the next step publishes the log.
    }
  }

  const std::shared_ptr<const Program> program_;
  Instance instance_;
  History history_;

  std::optional<std::vector<std::int32_t>> replacement_;  // of the last token, if it was replaced
  bool is_stale_ = false;  // a step failed, and its effects on the instance must still be undone
  std::string broken_;     // why an undo failed; the matcher refuses every call from then on

  // The log's length after a number of tokens. Iterations in flight may be ahead of the answer; there are enough marks
  // for all their tokens.
  struct Mark {
    std::int64_t num_tokens = 0;
    std::uint64_t log_total = 0;
  };
  static constexpr std::size_t kMaxMarks = 64;

  mutable std::mutex log_mutex_;
  // Under the mutex:
  std::string published_log_;
  std::uint64_t published_total_ = 0;  // Host::log_total of `published_log_`
  std::deque<Mark> marks_;             // oldest first
};

int program_accept(ProgramMatcher &matcher, std::int32_t token) { return matcher.accept(token); }
int program_validate(ProgramMatcher &matcher, const std::int32_t *tokens, int count) {
  return matcher.validate(tokens, count);
}
int program_fill(ProgramMatcher &matcher, std::int32_t *row, int words) { return matcher.fill(row, words); }
int program_rollback(ProgramMatcher &matcher, int count) { return matcher.rollback(count); }
void *program_fork(ProgramMatcher &matcher) { return matcher.fork().release(); }
int program_reset(ProgramMatcher &matcher) { return matcher.reset(); }
int program_forced(ProgramMatcher &matcher, std::int32_t *tokens, int capacity) {
  return matcher.position().copy_forced(tokens, capacity);
}
int program_is_terminated(ProgramMatcher &matcher) { return matcher.position().is_terminated; }
const char *program_error(ProgramMatcher &matcher) { return matcher.error.c_str(); }
void program_destroy(ProgramMatcher &matcher) { delete &matcher; }
float program_temperature(ProgramMatcher &matcher) { return matcher.position().temperature(); }
int program_edit(ProgramMatcher &matcher, int *drop, std::int32_t *append, int capacity) {
  return matcher.edit(drop, append, capacity);
}

constexpr weft_matcher_ops kOps = {WEFT_MATCHER_ABI,       guarded<program_accept>,   guarded<program_validate>,
                                   guarded<program_fill>,  guarded<program_rollback>, guarded<program_fork>,
                                   guarded<program_reset>, guarded<program_forced>,   guarded<program_is_terminated>,
                                   guarded<program_error>, guarded<program_destroy>,  guarded<program_temperature>,
                                   guarded<program_edit>};

}  // namespace

weft_matcher start_matcher(std::shared_ptr<const Program> program, std::string argument,
                           const std::vector<std::int32_t> &prompt, std::shared_ptr<Variables> variables) {
  auto matcher = std::make_unique<ProgramMatcher>(std::move(program), std::move(argument), std::move(variables));
  matcher->start(prompt);
  return {&kOps, matcher.release()};
}

std::size_t undo_bytes_of(const weft_matcher &matcher) {
  return matcher.ops == &kOps ? static_cast<const ProgramMatcher *>(matcher.self)->undo_bytes() : 0;
}

std::optional<std::string> log_of(const weft_matcher &matcher) {
  if (matcher.ops != &kOps) return std::nullopt;
  return static_cast<const ProgramMatcher *>(matcher.self)->log();
}

std::optional<Report> report_of(const weft_matcher &matcher, std::int64_t num_tokens) {
  weft_matcher inner = matcher;
  while (const std::optional<weft_matcher> next = guide_after(inner, num_tokens)) inner = *next;
  if (inner.ops != &kOps) return std::nullopt;
  return static_cast<const ProgramMatcher *>(inner.self)->report(num_tokens);
}

}  // namespace weft::aici
