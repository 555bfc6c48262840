// Starts the page and connects its controls.

import { $, checked, copyText, isNarrow, make } from './dom.js'
import { api } from './api.js'
import { complete } from './answer.js'
import { chat, connectChat, chooseMode, resumeChat } from './chat.js'
import { showCode } from './code.js'
import { EXAMPLES, TINY_EXAMPLES, showExamples } from './examples.js'
import { checkSoon, guideChanged, showKinds } from './guides.js'
import { lanes, race, slowMotion } from './race.js'
import { modelNamed, setModels } from './request.js'
import { load, store } from './storage.js'
import { busy, showFailure, stop } from './work.js'

const drafterOf = model => model.num_draft_tokens ? model.speculation : 'no drafter'

function chooseModel() {
  const model = modelNamed($('model').value), maxDrafts = model.num_draft_tokens
  $('drafts').max = Math.max(maxDrafts, 1)
  $('drafts').value = maxDrafts
  $('drafts').disabled = !maxDrafts
  $('drafter').textContent = maxDrafts ? `Drafter: ${model.speculation}. With 0 the model writes alone.`
    : 'This model is served without a drafter: weft serve --speculation ….'
  showDrafts()
  $('note').hidden = !model.is_embedded
  showExamples(model.is_embedded ? TINY_EXAMPLES : EXAMPLES)
  showKinds(model.guides)
  lanes.forEach(lane => { lane.model.value = model.id; lane.fit() })
}

const showDrafts = () => { $('drafts-now').textContent = $('drafts').value }

/** Set the theme and remember it. Without `theme`, the system's applies. */
function chooseTheme(theme) {
  document.documentElement.style.colorScheme = theme ?? ''
  if (theme) store('localStorage', 'weft-theme', theme)
}

function otherTheme() {
  const now = document.documentElement.style.colorScheme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')
  chooseTheme(now === 'dark' ? 'light' : 'dark')
}

async function begin() {
  chooseTheme(load('localStorage', 'weft-theme'))
  $('lanes').append(...lanes.map(lane => lane.element))
  const models = (await (await api('v1/models')).json()).data
  setModels(models)
  const options = () => models.map(model => make('option', { value: model.id }, `${model.id} · ${drafterOf(model)}`))
  $('model').replaceChildren(...options())
  lanes.forEach(lane => { lane.model.replaceChildren(...options()); lane.model.hidden = models.length < 2 })
  chooseModel()
  connectChat(() => busy(run))
  if (!resumeChat()) beginWithDefaults()
  if (checked('mode') === 'chat' && !isNarrow()) $('prompt').focus() // on a phone that would open the keyboard
  document.body.dataset.state = 'idle'
}

/** weft-tiny begins with an example, and any other model with a chat. */
function beginWithDefaults() {
  const isTiny = !$('note').hidden
  if (!isTiny) document.querySelector('input[value=chat]').checked = true
  chooseMode()
  if (isTiny) $('examples').firstChild.click()
}

const run = signal => checked('mode') === 'chat' ? chat(signal) : complete(signal)

$('ask').addEventListener('submit', event => { event.preventDefault(); busy(run) })
$('race').addEventListener('click', () => busy(race))
$('slow').addEventListener('click', () => busy(slowMotion))
$('stop').addEventListener('click', stop)
$('model').addEventListener('change', chooseModel)
$('drafts').addEventListener('input', showDrafts)
$('theme').addEventListener('click', otherTheme)
$('modes').addEventListener('change', chooseMode)
$('handle').addEventListener('change', checkSoon)
$('guide').addEventListener('input', guideChanged)
for (const id of ['prompt', 'guide', 'kinds']) $(id).addEventListener('input', () => { $('about').hidden = true }) // no longer the example
document.addEventListener('keydown', event => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) busy(run)
  if (event.key === 'Escape') stop()
})

// The code follows every change of the page: what the user types, and what an example, a mode or an answer sets.
for (const kind of ['input', 'change', 'click']) document.addEventListener(kind, showCode)
$('code-details').addEventListener('toggle', showCode)
$('copy-code').addEventListener('click', () => copyText($('code').textContent, $('copy-code')))
begin().catch(showFailure)
