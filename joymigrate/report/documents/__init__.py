"""Every document that joymigrate writes, opened and shown as text, Markdown or a page.

What a document is called and means stands in `views/<noun>.yaml`; how a file is read stands in
`formats/<kind>.py`. A new document is one file of data.
"""

from joymigrate.report.documents.document_files import Opened, open_file
from joymigrate.report.documents.show import FORMATS, show
from joymigrate.report.documents.view import DocumentView, view_of, views

__all__ = ["FORMATS", "DocumentView", "Opened", "open_file", "show", "view_of", "views"]
