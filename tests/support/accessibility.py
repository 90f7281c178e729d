"""What keeps people from using a page without a mouse, or with little or no sight, as far as a machine can tell.

Source: Web Content Accessibility Guidelines 2.2 (1.1.1, 1.3.1, 1.4.3, 2.4.6, 2.4.7, 3.1.1, 4.1.2, 4.1.3).
"""

from __future__ import annotations

from typing import Final

from chromium import Chromium

NAMED_ROLES: Final = frozenset(
    {"button", "link", "textbox", "searchbox", "combobox", "spinbutton", "checkbox", "image", "img", "dialog", "table",
     "navigation", "region", "listbox", "option", "columnheader"}
)  # fmt: skip
"""In Chromium's own accessibility tree, these say nothing without a name."""
_LOOK: Final = r"""(() => {
  const problems = [];
  const shown = (element) => element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true});
  const described = (element) =>
    `<${element.localName}${element.id ? '#' + element.id : ''} class="${element.className}"> ` +
    JSON.stringify((element.textContent || element.placeholder || '').trim().slice(0, 40));
  const root = document.querySelector('dialog[open]') ?? document.body;

  // Contrast of text. What is disabled need not be read (1.4.3), and what is unseen is for screen readers.
  const rgba = (text) => [...text.match(/[\d.]+/g).map(Number), 1].slice(0, 4);
  const over = ([r, g, b, a], below) => [r, g, b].map((part, at) => part * a + below[at] * (1 - a));
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    const canvas = matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255];
    return layers.reduceRight((below, layer) => over(layer, below), canvas);
  };
  const luminance = (color) => color.map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const check = (element, style) => {
    const below = ground(element);
    const [one, other] = [luminance(over(rgba(style.color), below)), luminance(below)];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (contrast < least) problems.push(`contrast ${contrast.toFixed(2)} of ${described(element)}`);
  };
  const seen = new Set();
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (seen.has(element) || !texts.currentNode.data.trim() || !shown(element)) continue;
    seen.add(element);
    if (element.closest('.unseen, .skip, option, script, style, noscript')) continue;
    if (element.closest('button, input, select')?.disabled) continue;
    check(element, getComputedStyle(element));
  }
  for (const input of root.querySelectorAll('input')) {
    if (input.placeholder && shown(input)) check(input, getComputedStyle(input, '::placeholder'));
  }

  // Focus that can be seen, wherever it can go; and nothing that takes a click alone.
  for (const element of root.querySelectorAll('a[href], button, input, select, textarea, [tabindex]')) {
    if (element.disabled || !shown(element) || element.tabIndex < 0) continue;
    element.focus({preventScroll: true});
    const style = getComputedStyle(element);
    const isSeen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
    if (document.activeElement !== element) problems.push(`no focus for ${described(element)}`);
    else if (!isSeen) problems.push(`focus cannot be seen on ${described(element)}`);
    else {
      const [one, other] = [luminance(rgba(style.outlineColor).slice(0, 3)), luminance(ground(element.parentElement))];
      const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      if (contrast < 3) problems.push(`contrast ${contrast.toFixed(2)} of the focus on ${described(element)}`);
    }
  }
  for (const element of root.querySelectorAll('[tabindex]')) {
    if (element.tabIndex > 0) problems.push(`${described(element)} has an order of its own`);
  }
  window.focusedBefore?.focus({preventScroll: true});

  // Headings, identities, language, and places where news are said.
  const headings = [...root.querySelectorAll('h1, h2, h3, h4, h5, h6')].filter(shown);
  let level = root === document.body ? 0 : 1;
  for (const heading of headings) {
    const own = Number(heading.localName[1]);
    if (own > level + 1) problems.push(`after a heading of level ${level} comes ${described(heading)}`);
    if (!heading.textContent.trim()) problems.push(`a heading without a text: ${described(heading)}`);
    level = own;
  }
  const first = headings.filter((each) => each.localName === 'h1');
  if (root === document.body && first.length !== 1) problems.push('there is not one h1');
  const ids = [...document.querySelectorAll('[id]')].map((element) => element.id);
  for (const id of ids.filter((each, at) => ids.indexOf(each) !== at)) problems.push(`#${id} is there twice`);
  for (const name of ['aria-labelledby', 'aria-describedby', 'for']) {
    for (const element of root.querySelectorAll(`[${name}]`)) {
      for (const id of element.getAttribute(name).split(' ')) {
        const isThere = document.getElementById(id) !== null;
        if (isThere || !shown(element)) continue;
        problems.push(`${described(element)}: ${name} names #${id}, which is not there`);
      }
    }
  }
  if (!document.documentElement.lang || !document.title) problems.push('no language, or no title');
  if (document.querySelectorAll('main').length !== 1) problems.push('there is not one main');
  const announced = document.querySelector('#announce');
  const isLive = announced?.getAttribute('aria-live') === 'polite' && !announced.closest('#view');
  if (!isLive) problems.push('no place for news');
  for (const place of root.querySelectorAll('.banner, .problem')) {
    if (place.localName === 'p' || place.localName === 'div') {
      if (place.getAttribute('role') !== 'alert') problems.push(`nobody is told of ${described(place)}`);
    }
  }
  return problems;
})()"""


def accessibility_problems(page: Chromium) -> list[str]:
    """Of what is shown now: the dialog, if one is open. The focus is then where it was."""
    page.evaluate("window.focusedBefore = document.activeElement")
    for kind in (
        "rawKeyDown",
        "keyUp",
    ):  # a browser shows the focus to who uses the keyboard: one that does nothing here
        page.call("Input.dispatchKeyEvent", type=kind, key="F9", code="F9", windowsVirtualKeyCode=120)
    found: list[str] = page.evaluate(_LOOK)
    for node in page.call("Accessibility.getFullAXTree")["nodes"]:
        role = node.get("role", {}).get("value")
        if not node["ignored"] and role in NAMED_ROLES and not node.get("name", {}).get("value", "").strip():
            found.append(f"{role} without a name, in the accessibility tree ({node.get('properties')})"[:200])
    return found
