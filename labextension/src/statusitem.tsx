/**
 * The status bar's item: memory, state and time left of the notebook that the user looks at. Its words come from
 * `describe.ts` and `figures.ts` (the session) and `notice.ts` (what is wrong).
 */

import { VDomRenderer } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { safeText, sessionState, tone } from './describe';
import { sessionFigures } from './figures';
import { sentences } from './format';
import { ModelAdapter } from './modeladapter';
import { notice } from './notice';

export class StatusItem extends VDomRenderer<ModelAdapter> {
  constructor(
    model: ModelAdapter,
    private readonly _trans: TranslationBundle,
    private readonly _onActivate: () => void
  ) {
    super(model);
    this.addClass('sk-StatusItem');
  }

  /** Whether there is anything to show. */
  get isActive(): boolean {
    const { device } = this.model;
    return device.currentSession !== null || (device.view.gateway.state === 'away' && device.currentKernel !== null);
  }

  override render(): React.ReactElement | null {
    const { device } = this.model;
    const trans = this._trans;
    const session = device.currentSession;
    if (!this.isActive) {
      return null;
    }
    const trouble = notice(device, trans);
    const text = [trans.__('Shared GPU')];
    const details: string[] = [];
    const figures = (place: 'line' | 'beside' | 'details') =>
      session === null ? [] : sentences(sessionFigures, place, session, device.units, trans);
    if (session !== null) {
      text.push(...figures('beside'));
      details.push(figures('details').join(', '));
      if (session.device !== null) {
        details.push(trans.__('on %1', safeText(session.device)));
      }
    }
    if (trouble !== null) {
      text.push(trouble.brief);
      details.push(trouble.text);
    } else if (session !== null) {
      text.push(sessionState(session, trans), ...figures('line'));
    }
    const mood = trouble !== null || session === null ? 'away' : tone(session);
    return (
      <button type="button" className="sk-StatusItem-button" title={details.join('\n')} onClick={this._onActivate}>
        <span className={`sk-Dot sk-mod-${mood}`} aria-hidden="true" />
        {text.join(' · ')}
      </button>
    );
  }
}
