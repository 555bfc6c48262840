// The race: one prompt and seed with two settings, at the same time.

import { $, counted, isNarrow, make, milliseconds, number, rounded, scrollTo } from './dom.js'
import { generate } from './api.js'
import { messagesNow } from './chat.js'
import { modelNamed, request } from './request.js'
import { TokenBox } from './tokens.js'

/** One of the two settings of the race, with its answer. */
class Lane {
  constructor(name, drafts) {
    this.name = name
    this.model = make('select', { 'aria-label': `Model of ${name}`, onchange: () => this.fit() })
    this.drafts = make('input', { type: 'range', min: 0, value: drafts, 'aria-label': `Drafts of ${name}`, oninput: () => this.showDrafts() })
    this.now = make('output')
    this.guided = make('input', { type: 'checkbox', checked: true })
    this.bar = make('i')
    this.clock = make('div', { class: 'clock', 'aria-hidden': 'true', hidden: true }, this.bar) // empty before a race
    this.progress = make('p', { class: 'hint' })
    this.place = make('div')
    this.element = make('section', { class: 'lane', 'aria-label': `Setting ${name}` },
      make('div', { class: 'slider' }, make('span', {}, make('b', {}, name), ' max drafts ', this.now), this.drafts), this.model,
      make('label', { class: 'check' }, this.guided, 'with the guide'),
      this.clock, this.progress, this.place)
  }

  fit() {
    this.drafts.max = Math.max(modelNamed(this.model.value).num_draft_tokens, 1)
    this.showDrafts()
  }

  showDrafts() { this.now.textContent = this.drafts.value }

  async race(messages, seed, signal) {
    const model = modelNamed(this.model.value)
    this.box = new TokenBox(`The answer of ${this.name}. Arrow keys walk through its tokens.`)
    this.place.replaceChildren(this.box.element)
    this.element.classList.remove('winner')
    this.clock.hidden = false
    this.bar.style.width = 0
    const settings = { model: model.id, drafts: Number(this.drafts.value), guided: this.guided.checked, messages, seed }
    this.answer = await generate(request(settings), signal, (tokens, soFar) => {
      this.box.add(tokens, model.vocab_size)
      this.progress.textContent = `${soFar.tokens.length} tokens`
    })
    this.box.markEnd(this.answer)
  }

  get iterations() { return this.answer.weft.num_iterations }

  /** Seconds from the first token to the last by the server's clock, which the browser's delays do not affect. */
  get seconds() { return (this.answer.usage.completion_tokens - 1) / (this.answer.weft.decode_tokens_per_second || Infinity) }

  show(longest, won) {
    const rate = rounded(this.answer.weft.decode_tokens_per_second, 0)
    this.bar.style.width = `${this.seconds / longest * 100}%`
    this.element.classList.toggle('winner', won)
    this.progress.textContent = `${milliseconds(this.seconds)}, ${counted(this.iterations, 'iteration')}, ${rate} tokens/s`
  }
}

export const lanes = [new Lane('A', 0), new Lane('B', 8)]

export async function race(signal) {
  const messages = messagesNow(), seed = number('seed') ?? Math.floor(Math.random() * 2 ** 31)
  if (messages ? !messages.length : !$('prompt').value) return $('prompt').focus()
  $('outcome').textContent = ''
  $('slow').hidden = true
  delete $('race-card').dataset.equal
  scrollTo($('race-card'), isNarrow() ? 'start' : 'nearest')
  await Promise.all(lanes.map(lane => lane.race(messages, seed, signal)))
  const [a, b] = lanes, longest = Math.max(a.seconds, b.seconds), equal = a.answer.text === b.answer.text
  lanes.forEach(lane => lane.show(longest, lane.seconds < longest))
  $('race-card').dataset.equal = equal
  $('outcome').textContent = `${outcome(...(a.seconds < b.seconds ? [a, b] : [b, a]))} ${equal ? 'Equal text.' : 'The texts differ.'}`
  $('slow').hidden = false
}

function outcome(fast, slow) {
  const times = slow.seconds / fast.seconds
  const counts = `${fast.iterations} iterations against ${slow.iterations}`
  return times > 1.05 ? `${fast.name} is ${times.toFixed(1)} times as fast as ${slow.name}: ${counts}.` : `As fast as each other: ${counts}.`
}

/** Replay the race, one iteration of both at a time. */
export async function slowMotion(signal) {
  const all = lanes.flatMap(lane => [...lane.box.element.children])
  all.forEach(span => span.classList.add('later'))
  const pause = () => new Promise(resolve => setTimeout(resolve, signal.aborted ? 0 : 260))
  for (let iteration = 0; all.some(span => span.classList.contains('later')); iteration++) {
    all.filter(span => signal.aborted || Number(span.dataset.iteration) <= iteration).forEach(span => span.classList.remove('later'))
    await pause()
  }
}
