"""A preprocessor of mdBook: makes links that leave docs/ lead to files of the tree, which the book does not contain.

mdBook turns `.md` into `.html` in every relative link, but not in `%2Emd`, and calls the page of a README.md `index`.
"""

import json
import pathlib
import posixpath
import re
import sys

LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def with_tree_links(text, folder, url):
    def rewritten(link):
        target = link[2]
        if re.match(r"[a-z]+:|#|/", target):
            return link[0]
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        if path.startswith("docs/"):
            return link[0].replace("README.md", "index.md")
        if ":" in url:
            return f"{link[1]}{url}/{path}{link[3]}"
        depth = "../" * len(pathlib.PurePath(folder).parts)
        return f"{link[1]}{depth}{url}/{path.replace('.md', '%2Emd')}{link[3]}"

    return LINK.sub(rewritten, text)


def rewrite(items, url):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter and chapter["path"]:
            chapter["content"] = with_tree_links(chapter["content"], posixpath.dirname(chapter["path"]), url)
            rewrite(chapter["sub_items"], url)


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    context, book = json.load(sys.stdin)
    rewrite(book["items"], context["config"]["preprocessor"]["tree"]["url"])
    json.dump(book, sys.stdout)


main()
