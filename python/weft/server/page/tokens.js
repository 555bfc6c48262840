// An answer's tokens: their colours, the tooltip of each, and the figures below the answer.

import { $, counted, make, milliseconds, percent, rounded } from './dom.js'

const DRAFTERS = { eagle3: 'the EAGLE3 head', mtp: 'the MTP module', draft_model: 'the draft model', ngram: 'n-grams' }
const classOf = origin => origin in DRAFTERS ? 'drafted' : ['forced', 'given', 'spliced'].includes(origin) ? origin : 'sampled'
const WHY = {
  sampled: 'Sampled from the model, without a draft.',
  drafted: origin => `Drafted by ${DRAFTERS[origin]}; the model agreed.`,
  forced: 'Drafted from the grammar, which allowed no other text here.',
  given: 'Drafted from the text that was expected; the model agreed.',
  spliced: 'Written by the program of the guide.',
}
const ORIGINS = { sampled: 'sampled', forced: 'forced by the grammar', given: 'expected text', spliced: 'written by the program' }
const details = new WeakMap() // maps a token's element to the data for its tooltip
const visible = text => text.replaceAll('\n', '↵').replaceAll('\t', '⇥')

/** A box to which tokens are added as they arrive. Arrow keys move between them. */
export class TokenBox {
  constructor(label) {
    this.element = make('div', { class: 'tokens', role: 'group', 'aria-label': label, onkeydown: event => this.walk(event) })
    this.decoder = new TextDecoder() // a character may span tokens
    this.iteration = 0
    this.counts = {}
    this.overruled = 0
  }

  add(tokens, vocabulary) {
    this.element.append(...tokens.map(token => this.span(token, vocabulary)))
  }

  span(token, vocabulary) {
    const { origin, logprob } = token
    const overruled = token.top_logprobs.filter(other => other.forbidden && other.logprob > logprob)
    const text = this.decoder.decode(new Uint8Array(token.bytes), { stream: true })
    const span = make('span', { class: `token ${classOf(origin)}`, tabindex: this.element.firstChild ? -1 : 0 }, text.replaceAll('\n', '↵\n'))
    if (overruled.length) span.classList.add('overruled')
    if (token.is_thought) span.classList.add('thought')
    details.set(span, { token, overruled, vocabulary, iteration: this.iteration })
    span.dataset.iteration = this.iteration
    this.counts[origin] = (this.counts[origin] ?? 0) + 1
    this.overruled += overruled.length > 0
    this.iteration += origin === 'sampled' // an iteration ends with a sampled token, and the prefill with the first one
    return span
  }

  /** Show the end token small, because it is not part of the text. */
  markEnd(answer) {
    if (answer.reason === 'stop' && !answer.text.endsWith(answer.tokens.at(-1)?.token ?? '')) this.element.lastChild.classList.add('special')
  }

  walk(event) {
    const steps = { ArrowRight: 'nextElementSibling', ArrowLeft: 'previousElementSibling' }
    const next = event.target[steps[event.key]]
    if (!next) return
    event.preventDefault()
    event.target.tabIndex = -1
    next.tabIndex = 0
    next.focus()
  }
}

function tipContent({ token, overruled, vocabulary, iteration }) {
  const kind = classOf(token.origin), why = WHY[kind]
  const allowed = token.num_allowed >= vocabulary ? 'every token was allowed'
    : token.num_allowed === 1 ? 'no other token was allowed'
    : `${token.num_allowed.toLocaleString('en')} of ${vocabulary.toLocaleString('en')} tokens were allowed`
      + (kind === 'forced' ? ', which all begin that text' : '')
  const rows = token.top_logprobs.map(other => {
    const bar = make('div', { class: 'bar' }), probability = Math.exp(other.logprob)
    bar.style.width = `${probability * 100}%`
    return make('tr', { class: other.forbidden ? 'forbidden' : null },
      make('td', {}, visible(other.token)), make('td', {}, bar),
      make('td', {}, other.forbidden ? `forbidden · ${percent(probability)}` : percent(probability)))
  })
  return [
    make('p', { class: 'name' }, `“${visible(token.token)}”`),
    ...(token.is_thought ? [make('p', { class: 'why' }, 'Thinking, which is no part of the answer.')] : []),
    make('p', {}, typeof why === 'function' ? why(token.origin) : why),
    make('p', { class: 'muted' }, `Probability ${percent(Math.exp(token.logprob))}; ${allowed}. `, iteration ? `Iteration ${iteration}.` : 'From the prompt.'),
    ...(overruled.length ? [make('p', { class: 'why' }, `The guide overruled the model, which preferred “${visible(overruled[0].token)}”.`)] : []),
    make('table', { 'aria-label': 'The likeliest tokens' }, make('tbody', {}, ...rows)),
  ]
}

const tip = $('tip')
let tipped = null

function showTip(span) {
  hideTip()
  if (!details.has(span)) return
  tipped = span
  span.classList.add('on')
  span.setAttribute('aria-describedby', 'tip')
  tip.replaceChildren(...tipContent(details.get(span)))
  tip.hidden = false
  const box = span.getClientRects()[0] ?? span.getBoundingClientRect() // the first line, if the token wraps
  const below = box.bottom + tip.offsetHeight + 8 < innerHeight || box.top < tip.offsetHeight + 8
  tip.style.left = `${scrollX + Math.max(8, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8))}px`
  tip.style.top = `${scrollY + (below ? box.bottom + 6 : box.top - tip.offsetHeight - 6)}px`
}

export function hideTip() {
  tipped?.classList.remove('on')
  tipped?.removeAttribute('aria-describedby')
  tipped = null
  tip.hidden = true
}

// Touch has no hover: a tap on a token shows its tooltip, and a tap elsewhere hides it.
document.addEventListener('pointerover', event => { if (event.pointerType === 'mouse') showTip(event.target) })
document.addEventListener('focusin', event => showTip(event.target))
document.addEventListener('click', event => showTip(event.target))
document.addEventListener('keydown', event => { if (event.key === 'Escape') hideTip() })

export function showLegend(counts, overruled) {
  const kinds = Object.entries(counts).filter(([, count]) => count)
  $('shares').hidden = !kinds.length
  $('shares').replaceChildren(...kinds.map(([origin, count]) => {
    const share = make('i', { class: classOf(origin) })
    share.style.flexGrow = count
    return share
  }))
  $('legend').replaceChildren(...kinds.map(([origin, count]) => make('span', {},
    make('i', { class: classOf(origin) }), make('b', {}, `${count} `), ORIGINS[origin] ?? `drafted by ${DRAFTERS[origin] ?? origin}`)))
  if (overruled) $('legend').append(make('span', {}, make('i', { class: 'overruled' }), make('b', {}, `${overruled} `), 'where the guide overruled the model'))
}

const stat = (name, value, more = '') => make('div', {}, make('dt', {}, name), make('dd', {}, value, ' ', make('small', {}, more)))

function liveRate(answer) {
  const seconds = (answer.last - answer.first) / 1000
  return seconds > 0 ? (answer.tokens.length - 1) / seconds : 0
}

/** Show statistics: the page's own while the answer arrives, and the server's at its end. */
export function showStats(answer, box) {
  const { weft, usage } = answer, drafts = weft?.speculative_decoding
  const num = usage?.completion_tokens ?? answer.tokens.length // the server counts the end token too
  const iterations = weft?.num_iterations ?? Math.max(box.iteration - 1, 0)
  const figures = [stat('Tokens/s', rounded(weft?.decode_tokens_per_second || liveRate(answer), 0), counted(num, 'token'))]
  figures.push(stat('Per iteration', iterations ? ((num - 1) / iterations).toFixed(2) : '–', counted(iterations, 'iteration')))
  if (weft) {
    figures.push(stat('Accepted', drafts ? percent(drafts.draft_acceptance_rate) : '–', drafts ? `${drafts.num_accepted_tokens} of ${drafts.num_draft_tokens} drafts` : 'nothing drafted'))
    figures.push(stat('First token', milliseconds(weft.time_to_first_token_s), weft.compile_s > 0.001 ? `guide ${milliseconds(weft.compile_s)}` : ''))
  } else figures.push(stat('Accepted', '–'), stat('First token', '–')) // so that the others keep their places
  if (weft?.guided_valid) figures.push(stat('Guide', weft.guided_valid[0] ? 'obeyed' : 'cut', weft.guided_valid[0] ? 'to its end' : 'before its end'))
  $('stats').hidden = false
  $('stats').replaceChildren(...figures)
}
