// Checks the ServiceMonitors of a file against the schema of the Prometheus operator, which the validator
// of Kubernetes does not know.
//
//     node monitors.mjs FILE PACKAGES     PACKAGES: the folder in which npm has installed
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const [file, packages] = process.argv.slice(2);
const from = (path) => import(pathToFileURL(`${packages}/node_modules/${path}`));
const { loadAll } = await from('js-yaml/dist/js-yaml.mjs');
const { ServiceMonitor } =
    await from('@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor.js');

const monitors = loadAll(readFileSync(file, 'utf8')).filter((it) => it.kind === 'ServiceMonitor');
if (monitors.length === 0) throw new Error('there is no ServiceMonitor');
for (const monitor of monitors) new ServiceMonitor(monitor).validate();
console.log(`ServiceMonitors: ${monitors.length} valid`);
