// Elements of the page, and numbers as text.

export const $ = id => document.getElementById(id)

/** Make an element. Text becomes text nodes, as everywhere on this page, so a model's output is never parsed as HTML. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value)
    else if (value === true) element.setAttribute(name, '')
    else if (value !== false && value != null) element.setAttribute(name, value)
  }
  element.append(...children)
  return element
}

/** The value of the checked radio button of a group. */
export const checked = name => document.querySelector(`input[name=${name}]:checked`).value

/** The value of a number field; undefined if it is empty. */
export const number = id => $(id).value === '' ? undefined : Number($(id).value)

export const percent = share => share > 0 && share < 0.0001 ? '<0.01 %' : `${(share * 100).toFixed(share > 0.999 || share < 0.1 ? 2 : 1).replace(/\.0+$/, '')} %`
export const rounded = (value, digits = 1) => value >= 100 ? Math.round(value).toLocaleString('en') : value.toFixed(digits)
export const counted = (number, noun) => `${number} ${noun}${number === 1 ? '' : 's'}`
export const milliseconds = seconds => `${rounded(seconds * 1000)} ms`

/** Scroll to an element, smoothly unless the system asks for less motion. */
export function scrollTo(element, block = 'start') {
  const behavior = matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth'
  element.scrollIntoView({ behavior, block })
}

export const isNarrow = () => matchMedia('(max-width: 54rem)').matches

/** Copy text, and say so on the button for a moment. `navigator.clipboard` is missing on pages that came over plain HTTP
 *  from another machine, and may be forbidden, so then an invisible field is copied. */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text)
  } catch {
    const field = make('textarea', { class: 'hidden', 'aria-hidden': 'true' })
    field.value = text
    document.body.append(field)
    field.select()
    document.execCommand('copy')
    field.remove()
  }
  button.dataset.label ??= button.textContent // a second click may find "Copied"
  button.textContent = $('announcement').textContent = 'Copied'
  setTimeout(() => { button.textContent = button.dataset.label }, 1500)
}
