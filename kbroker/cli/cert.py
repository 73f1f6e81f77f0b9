"""`kbroker cert`: certificates for development.

Owns the files and the output about these files; security/tls/development.py decides the form of certificates. Never
overwrites a file.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from kbroker.cli.output import Verbs


@click.group("cert", cls=Verbs)
def command() -> None:
    """Create certificates for development."""


@command.command("dev", short_help="Create an authority, and certificates for a server and clients.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A name or address of the server; repeatable.")
@click.option(
    "--client", "clients", multiple=True, metavar="NAME", help="The name of a client; repeatable [default: client]."
)
@click.option("--password", default="changeit", show_default=True, help="The password of the PKCS12 files.")
def dev(directory: Path, hosts: tuple[str, ...], clients: tuple[str, ...], password: str) -> None:
    """Create an authority for development in DIRECTORY, and certificates for a server and clients.

    Existing files stay, and an existing authority signs new certificates: run it again for another client. The
    certificates are valid for a year. With ca.pem anyone can issue certificates for any name: never use it in
    production.
    """
    from kbroker.security.tls import development

    if len(password) < 6:
        raise click.UsageError("Java requires passwords of at least six characters")
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    made: list[str] = []

    def write(name: str, data: bytes) -> None:
        """Write a file that only its owner may read."""
        with open(os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        made.append(name)

    authority_file = directory / "ca.pem"
    if authority_file.exists():
        try:
            authority = development.load_authority(authority_file.read_bytes())
        except ValueError as error:
            raise click.ClickException(f"{authority_file} is no authority made by this command: {error}") from None
    else:
        authority = development.authority()
        write("ca.pem", authority.pem())
    if not (directory / "ca.crt").exists():
        write("ca.crt", authority.certificates_pem())
    if not (directory / "truststore.p12").exists():
        write("truststore.p12", development.trust_store(authority.certificate, password))
    names = list(dict.fromkeys([*development.server_names(), *hosts]))
    for name, own_hosts in (("server", names), *((each, []) for each in clients or ("client",))):
        if (directory / f"{name}.pem").exists():
            continue
        signed = development.sign(authority, name, own_hosts)
        write(f"{name}.pem", signed.pem())
        write(f"{name}.p12", signed.pkcs12(name, password))
    _print_made(directory, made)


def _print_made(directory: Path, made: list[str]) -> None:
    where = directory.absolute()
    click.echo(f"made in {where}: {', '.join(made)}" if made else f"{where} already has all these files")
    click.echo(
        f"""
For the broker:
  ssl.keystore.type=PEM
  ssl.keystore.location={where}/server.pem
  ssl.truststore.type=PEM
  ssl.truststore.location={where}/ca.crt
For clients:
  security.protocol=SSL
  ssl.truststore.type=PEM
  ssl.truststore.location={where}/ca.crt
With librdkafka:
  security.protocol=SSL
  ssl.ca.location={where}/ca.crt"""
    )
