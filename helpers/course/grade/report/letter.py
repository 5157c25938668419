"""Feedback as email: one file per student, which a mail program opens and sends. Nothing is sent here."""

from email import policy
from email.message import EmailMessage

from ..judge.result import Result
from .roster import Person


def letter(sender: str, person: Person, results: list[Result], page: str) -> str:
    """Return an .eml file to `person`: the points in words, and their page as an attachment.

    `X-Unsent` has mail programs open it as a draft.
    """
    message = EmailMessage(policy=policy.SMTP)
    message["From"], message["To"] = sender, _one_line(person.email)
    message["Subject"] = "Feedback: " + ", ".join(r.exercise.upper() for r in results)
    message["X-Unsent"] = "1"
    lines = [f"{r.exercise.upper()}: {r.total} of {r.maximum} points ({r.status}). {r.reason}" for r in results]
    text = "\n".join(
        [f"Dear {_first_name_first(_one_line(person.name))},", "", *lines, "", "The attached page has the details."]
    )
    message.set_content(text.encode(errors="replace").decode() + "\n")
    attached = page.encode(errors="backslashreplace")
    message.add_attachment(attached, maintype="text", subtype="html", filename="feedback.html")
    return message.as_bytes().decode()  # ASCII: other characters are encoded as mail does


def _first_name_first(name: str) -> str:
    """Return "Jo Okafor" for "Okafor, Jo", which is how platforms sort names.

    >>> _first_name_first("Okafor, Jo"), _first_name_first("Jo Okafor"), _first_name_first("King, M. L., Jr.")
    ('Jo Okafor', 'Jo Okafor', 'King, M. L., Jr.')
    """
    last, _, first = name.partition(", ")
    return f"{first} {last}" if first and "," not in first else name


def _one_line(text: str) -> str:
    return " ".join(text.split())
