// The rows of a call whose layer keeps a state by slot (recur.h, convolve.h), and moves of whole states.
//
// A storage row holds the states of all layers after some token of a text. `source` names the storage row from which a
// slot's state is read, `target` the one to which it is written. They differ only for beams. The last iteration may
// have verified drafts: of these, the inputs of the first `owed` are still to be applied to the source.
#pragma once

#include <cstdint>
#include <vector>

namespace weft {

// Row b has the tokens starts[b]..starts[b + 1]-1 of the call, or `width` tokens without `starts`. Their positions
// begin at base[b] + count[b] + offset. A text's first token has position 0; its state before is zero.
//
// In the first `speculative` rows the tokens after the first are drafts. The state after the first token is written,
// and the inputs of the drafts are kept. Of the other rows, the state after the last token is written, and with
// saves[b] >= 0 also to the storage row saves[b].
//
// Rows of the same slot form a chain: the rows that are not speculative in order, then the speculative one. Each goes
// on where the one before ended. Rows without tokens and rows of the last slot, which pads, are skipped.
struct StateRows {
  const std::int64_t *base, *count, *starts;           // the last two may be null
  const std::int64_t *slots, *source, *target, *owed;  // [rows]; the others by slot
  const std::int64_t *saves;                           // [rows], or null
  std::int64_t rows, width, offset, speculative, num_slots;
};

// The tokens of a row in the call.
struct ChainRow {
  std::int64_t first, count, saves;
  bool is_speculative;
};

// The rows of a slot, in order: rows[begin..end-1] of Chains.
struct Chain {
  std::int64_t slot, source, target, owed;  // a source of -1 is the zero state
  std::int64_t begin, end, tokens;
};

struct Chains {
  std::vector<Chain> chains;
  std::vector<ChainRow> rows;
  std::int64_t tokens;
};

// Returns the chains of a call, in memory of this thread that the next call overwrites. `max_owed` is the number of
// drafts whose inputs are kept.
const Chains &chains_of(const StateRows &rows, std::int64_t max_owed);

// Sets the outputs [rows * width, size] of rows of the last slot to zero, unless there are `starts`. Later operations
// compute padding rows too, and arbitrary numbers may take longer.
void clear_padding(const StateRows &rows, float *out, std::int64_t size);

// The state of all layers by storage row. With beams, slot s has the storage rows s and s + num_slots.
struct StatesCall {
  float *storage;  // [.., row]
  std::int64_t *source, *target, *owed;
  std::int64_t row, num_slots;
  int threads;
};

// Lets each slot begin a text: nothing is owed, and the next call reads what it wrote before. Entries of the last slot
// pad, here and below.
void open_states_cpu(const StatesCall &call, const std::int64_t *slots, std::int64_t count);

// Copies storage rows sources[i] to the target of slots[i], which then owes nothing.
void load_states_cpu(const StatesCall &call, const std::int64_t *sources, const std::int64_t *slots,
                     std::int64_t count);

// Makes slots[i] a child of slot parents[i]: it reads what its parent wrote, and writes its other storage row. A slot
// may be the parent of several, and of another slot than itself. All slots of a beam search branch in the same call.
void branch_states_cpu(const StatesCall &call, const std::int64_t *slots, const std::int64_t *parents,
                       std::int64_t count);

}  // namespace weft
