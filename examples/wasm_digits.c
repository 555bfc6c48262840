/* A constraint in C: the answer is a number of exactly so many digits as the argument says.
 *
 *     pip install ziglang
 *     python -m ziglang cc -target wasm32-freestanding -Os -nostdlib -Wl,--no-entry -o wasm_digits.wasm wasm_digits.c
 *     weft generate "The year: " --wasm wasm_digits.wasm --wasm-arg 4
 *
 * The same in WebAssembly's text form, for readers without a compiler: wasm_digits.wat. */
#include "aici.h"

static u32 left; /* digits to come */

/* Whether a token is digits, and not too many. */
static u32 fits(u32 token) {
    u32 length;
    const u8 *bytes = aici_token(token, &length);
    if (length == 0 || length > left) return 0;
    for (u32 i = 0; i < length; i++)
        if (bytes[i] < '0' || bytes[i] > '9') return 0;
    return 1;
}

AICI_EXPORT(aici_init) void aici_init(void) {}

/* Once for each request: read the vocabulary and the argument. The number that is returned comes with each call. */
AICI_EXPORT(aici_create) u32 aici_create(void) {
    u32 size;
    aici_read_vocabulary();
    for (u8 *text = aici_blob(aici_host_module_arg(), &size); *text >= '0' && *text <= '9'; text++)
        left = left * 10 + (*text - '0');
    return 1;
}

AICI_EXPORT(aici_init_prompt) void aici_init_prompt(u32 self) {
    (void)self;
    aici_keep_prompt();
}

/* Once for each token, and once before the first: take what was written, say what may follow. */
AICI_EXPORT(aici_mid_process) void aici_mid_process(u32 self) {
    u32 tokens[16], count = aici_new_tokens(tokens, 16), length;
    (void)self;
    for (u32 i = 0; i < count; i++) {
        aici_token(tokens[i], &length);
        left -= length;
    }
    if (left == 0) {
        aici_stop();
        return;
    }
    aici_clear();
    for (u32 token = 0; token < aici_vocab_size; token++)
        if (fits(token)) aici_allow(token);
    aici_sample();
}
