import { describe, expect, it } from 'vitest';

import { status, session } from '../testdocuments';
import { parseView, ViewError } from '../view';
import { FiguresView } from './figures';

const me = {
  user: 'ada',
  admin: true,
  auth: 'token',
  version: '1',
  installCommand: '',
  needsCheckout: false,
  checksFingerprint: false
};
const document = JSON.stringify(status(session()));
const trouble = JSON.stringify({
  message: 'no "device": answers',
  reason: 'executor_unavailable',
  since: 1_790_000_000
});

describe('the stream of figures', () => {
  it('is a view of the user', () => {
    const found = parseView(new FiguresView(me).after(document));
    expect(found.gateway).toEqual({ state: 'connected', message: null, since: null });
    expect([found.user, found.status?.sessions.length]).toEqual([{ name: 'ada', admin: true }, 1]);
  });

  it('keeps the last figures while no executor answers, and has none before the first', () => {
    const view = new FiguresView(me);
    expect(parseView(view.after(trouble)).status).toBeNull();
    view.after(document);
    const found = parseView(view.after(trouble));
    expect(found.gateway).toEqual({
      state: 'no_figures',
      message: 'no "device": answers',
      since: new Date(1_790_000_000_000)
    });
    expect(found.status?.sessions).toHaveLength(1);
    expect(parseView(view.after(document)).gateway.state).toBe('connected');
  });

  it.each(['no JSON', '{}', '7'])('is garbage where it is: %s', text => {
    expect(() => parseView(new FiguresView(me).after(text))).toThrow(ViewError);
  });
});
