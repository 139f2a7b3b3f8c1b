/** What the user's programs serve on the host, and opening it in this browser. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { Api, IPort } from './api';
import { safeText } from './describe';
import { Section } from './section';

/** Names of a Jupyter server on the browser's machine: another one's loopback no browser reaches. */
const HERE = ['localhost', '127.0.0.1'];
/** Milliseconds between two looks, while the list can be seen. */
const PERIOD = 3000;

interface IProps {
  api: Api;
  trans: TranslationBundle;
}

export function PortsSection(props: IProps): React.ReactElement {
  return (
    <Section title={props.trans.__('Ports')} isFolded>
      <Ports {...props} />
    </Section>
  );
}

function Ports({ api, trans }: IProps): React.ReactElement {
  const [ports, setPorts] = React.useState<readonly IPort[]>([]);
  const [message, setMessage] = React.useState('');
  const isHere = HERE.includes(location.hostname);
  const place = React.useRef<HTMLDivElement>(null);
  const attempt = (work: Promise<void>) => void work.catch(error => setMessage((error as Error).message));
  const list = async () => {
    const found = await api.ports();
    if (!isHere && !found.is_proxied) {
      setMessage(trans.__('To open ports here, JupyterLab’s server needs the package jupyter-server-proxy.'));
      return;
    }
    setPorts(found.ports);
    setMessage(found.ports.length ? '' : trans.__('None of your programs listens on a port of the host.'));
  };
  const open = async (port: number) => {
    const local = await api.forward(port);
    // The other of the two names: cookies of this page's would go along to any port.
    const address = `http://${HERE[Number(location.hostname === HERE[0])]}:${local}/`;
    window.open(isHere ? address : api.proxied(local), '_blank', 'noopener');
  };
  React.useEffect(() => {
    const look = () => place.current?.offsetParent && attempt(list());
    const timer = setInterval(look, PERIOD);
    look();
    return () => clearInterval(timer);
  }, []);
  return (
    <div ref={place}>
      {ports.map(({ port, program }) => (
        <p key={port}>
          {port} · {safeText(program)}{' '}
          <button
            type="button"
            className="sk-Button"
            aria-label={trans.__('Open port %1', port)}
            onClick={() => attempt(open(port))}
          >
            {trans.__('Open')}
          </button>
        </p>
      ))}
      <p role="status">{safeText(message)}</p>
    </div>
  );
}
