// What a page looks like is a function of what is known; this brings the document there with as few changes as it takes,
// so that focus, selection and scroll positions stay where they are while figures change. No markup is ever parsed: the
// page's policy forbids it, and names of workers are somebody else's text.

const SVG = 'http://www.w3.org/2000/svg';
const PROPERTIES = new Set(['value', 'checked', 'disabled', 'indeterminate']);
const MADE = Symbol('made of');

/** An element that is wanted: tag, properties, children. What is null or false is left out. */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: flatten(children) };
}

function flatten(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (typeof child === 'object' ? child : String(child)));
}

/** Makes `wanted` the children of a node. */
export function render(parent, ...wanted) {
  const active = document.activeElement;
  const opened = [];
  patchChildren(parent, flatten(wanted), opened);
  for (const dialog of opened) dialog.showModal();
  // A row that moved took the focus away from what is in it.
  if (active?.isConnected && document.activeElement === document.body && active !== document.body) {
    active.focus({ preventScroll: true });
  }
}

function keyOf(wanted) {
  return typeof wanted === 'object' ? wanted.props.key : undefined;
}

function patchChildren(parent, wanted, opened) {
  const keyed = new Map();
  for (const node of parent.childNodes) {
    const key = node[MADE] && keyOf(node[MADE]);
    if (key !== undefined) keyed.set(key, node);
  }
  let at = parent.firstChild;
  for (const child of wanted) {
    const key = keyOf(child);
    let node = key === undefined ? at : keyed.get(key);
    if (key === undefined && node && node[MADE] && keyOf(node[MADE]) !== undefined) node = null;
    if (!node || !fits(node, child)) {
      node = make(child, parent, opened);
      parent.insertBefore(node, at);
    } else {
      if (node === at) at = at.nextSibling;
      else parent.insertBefore(node, at);
      patch(node, child, opened);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function fits(node, wanted) {
  if (typeof wanted === 'string') return node.nodeType === Node.TEXT_NODE;
  return node[MADE]?.tag === wanted.tag;
}

function make(wanted, parent, opened) {
  if (typeof wanted === 'string') return document.createTextNode(wanted);
  const inSvg = wanted.tag === 'svg' || parent.namespaceURI === SVG;
  const node = inSvg ? document.createElementNS(SVG, wanted.tag) : document.createElement(wanted.tag);
  node[MADE] = { tag: wanted.tag, props: {}, children: [] };
  patch(node, wanted, opened);
  if (wanted.props.modal) opened.push(node);
  return node;
}

function patch(node, wanted, opened) {
  if (typeof wanted === 'string') {
    if (node.data !== wanted) node.data = wanted;
    return;
  }
  const before = node[MADE].props;
  node[MADE] = wanted;
  for (const name of Object.keys(before)) {
    if (!(name in wanted.props)) set(node, name, undefined, before[name]);
  }
  patchChildren(node, wanted.children, opened);
  // After the children: what a select shows is one of them.
  for (const [name, value] of Object.entries(wanted.props)) set(node, name, value, before[name]);
}

function set(node, name, value, before) {
  if (name === 'key' || name === 'modal') return;
  if (name.startsWith('on')) {
    node[name] = value ?? null;
  } else if (PROPERTIES.has(name)) {
    if (node[name] !== (value ?? '')) node[name] = value ?? '';
  } else if (value !== before) {
    if (value === undefined || value === null || value === false) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? '' : value);
  }
}
