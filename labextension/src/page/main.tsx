/** The entry of the gateway's own page: sign in, follow the figures, show them. */

import * as React from 'react';
import { createRoot } from 'preact/compat/client';

import { Connection } from '../connection';
import { safeText } from '../describe';
import { reasonOf } from '../limits';
import { DeviceModel } from '../model';
import { notifyOfTurns } from '../notifier';
import { IMe, PageApi, SIGN_IN, SignInNeededError } from './api';
import { english } from './english';
import { FiguresView } from './figures';
import { Invitation, takeCode } from './invitation';
import { keptChoice } from './notifychoice';
import { Page } from './page';

import '../../style/base.css';
import '../../style/page.css';
import 'uplot/dist/uPlot.min.css';

const goToSignIn = () => window.location.assign(new URL(SIGN_IN, document.baseURI));

/** Milliseconds until a gateway that did not answer is asked again. */
const RETRY_PAUSE = 2000;

async function signedIn(api: PageApi, root: ReturnType<typeof createRoot>): Promise<IMe | null> {
  for (;;) {
    try {
      return await api.me();
    } catch (error) {
      if (error instanceof SignInNeededError) {
        goToSignIn();
        return null;
      }
      const why = reasonOf(error);
      root.render(<main className="sk-SignIn">{safeText(why)}</main>);
      await new Promise(resolve => setTimeout(resolve, RETRY_PAUSE));
    }
  }
}

async function start(place: HTMLElement): Promise<void> {
  const api = new PageApi();
  const root = createRoot(place);
  const me = await signedIn(api, root);
  if (me === null) {
    return;
  }
  const model = new DeviceModel();
  model.refreshInterval = 200;
  model.notifies = keptChoice();
  notifyOfTurns(model, english);
  const figures = new FiguresView(me);
  new Connection({
    open: () => api.openFigures(),
    onText: text => model.receive(figures.after(text)),
    onLost: heard => {
      model.lose(heard);
      // The stream does not say why it ended: perhaps nobody is signed in any more.
      api.me().catch((error: unknown) => {
        if (error instanceof SignInNeededError) {
          goToSignIn();
        }
      });
    }
  });
  root.render(<Page api={api} me={me} model={model} onSignIn={goToSignIn} />);
}

const place = document.getElementById('page');
if (place !== null) {
  void start(place);
}

const invited = document.getElementById('invitation');
if (invited !== null) {
  createRoot(invited).render(<Invitation code={takeCode()} />);
}
