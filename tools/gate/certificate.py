"""A TLS server whose certificate expires tomorrow, and a blackbox_exporter that probes it.

Both run on this host, at an address that the stack's Prometheus can reach. The certificate can be renewed while
the server runs, as an operator would do.
"""

import json
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

from .context import Context
from .model import Red, Skip
from .stacks import engine
from .stacks.base import request

MODULE = {"modules": {"tcp_tls": {"prober": "tcp", "timeout": "2s", "tcp": {
    "tls": True, "tls_config": {"insecure_skip_verify": True}}}}}


class Certificate:
    """The server; `renew` gives it a fresh certificate."""

    def __init__(self, ctx: Context) -> None:
        self.folder = ctx.folder / "certificate"
        self.folder.mkdir(exist_ok=True)
        self.host = host_address(ctx)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.renew(1)
        self.listener = socket.create_server((self.host, 0))
        ctx.defer(self.listener.close)
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> str:
        """The address of the server."""
        return f"{self.host}:{self.listener.getsockname()[1]}"

    def renew(self, days: int) -> None:
        """Creates a certificate that is valid for so many days; the next handshake uses it."""
        key, cert = self.folder / "key.pem", self.folder / "cert.pem"
        done = subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert),
             "-days", str(days), "-subj", "/CN=gate.invalid"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Red(f"openssl made no certificate: {done.stderr.strip()[-200:]}")
        self.tls.load_cert_chain(cert, key)

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self.listener.accept()
            except OSError:
                return  # The listener was closed: the gate ends.
            try:
                line.settimeout(3)
                with self.tls.wrap_socket(line, server_side=True):
                    pass
            except OSError:
                pass


def host_address(ctx: Context) -> str:
    """The address at which the stack's Prometheus reaches this host."""
    if not ctx.stack.containers:
        return "127.0.0.1"
    prometheus = ctx.stack.replica("prometheus")
    networks = engine.inspect([prometheus.container])[0]["NetworkSettings"]["Networks"]
    return next(network["Gateway"] for network in networks.values() if network.get("Gateway"))


def probed(ctx: Context, certificate: Certificate, targets: Path) -> None:
    """Starts a blackbox_exporter and makes Prometheus scrape its probe of the certificate."""
    program = shutil.which("prometheus-blackbox-exporter") or shutil.which("blackbox_exporter")
    if not program:
        raise Skip("blackbox_exporter is not installed here (tools/scripts/setup.sh gate installs it)")
    config = certificate.folder / "blackbox.json"
    config.write_text(json.dumps(MODULE))
    with socket.create_server((certificate.host, 0)) as free:
        address = "%s:%d" % free.getsockname()
    with open(certificate.folder / "blackbox.log", "ab") as log:
        process = subprocess.Popen([program, f"--config.file={config}", f"--web.listen-address={address}"],
                                   stdout=log, stderr=log)
    ctx.defer(process.wait)
    ctx.defer(process.terminate)
    probe = f"http://{address}/probe?module=tcp_tls&target={certificate.address}"
    ctx.poll("blackbox_exporter sees the certificate", 10,
             lambda: "probe_ssl_earliest_cert_expiry" in request("GET", probe, timeout=3).text)
    labels = {"__param_target": certificate.address, "instance": "gate.invalid"}
    (targets / "probe.json").write_text(json.dumps([{"targets": [address], "labels": labels}]))
    (targets / "probe.json").chmod(0o644)
