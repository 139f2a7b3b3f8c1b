/** The gateway's stream of figures as the view that JupyterLab's panel has, too. */

import { VERSION } from '../view';
import type { IMe } from './api';

/** Makes views of what arrives; while no executor answers, the last figures stay. */
export class FiguresView {
  constructor(me: IMe) {
    this._user = JSON.stringify({ name: me.user, admin: me.admin });
  }

  /** Return the view, as JSON, after a status document or what is sent in its place. */
  after(text: string): string {
    const trouble = troubleIn(text);
    if (trouble === null) {
      this._status = text;
    }
    const gateway = JSON.stringify(trouble ?? { state: 'connected' });
    return `{"version":${VERSION},"gateway":${gateway},"user":${this._user},"kernels":{},"status":${this._status}}`;
  }

  private _status = 'null';
  private readonly _user: string;
}

function troubleIn(text: string): { state: string; message: string; since: unknown } | null {
  // Only documents are long, and in a sentence the second quotation mark would be escaped.
  if (text.includes('"device":')) {
    return null;
  }
  try {
    const { message, since } = JSON.parse(text) as { message?: unknown; since?: unknown };
    return typeof message === 'string' ? { state: 'no_figures', message, since } : null;
  } catch {
    return null; // which the view's reader says
  }
}
