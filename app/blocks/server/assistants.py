"""What assistants get over the Model Context Protocol: images are sent as images."""

from typing import Any


def send_images(server: Any) -> None:
    """Has gradio's MCP server send the PNG of an answer by itself, not as a text of its bytes.

    Args:
        server: `gradio.mcp.GradioMCPServer`; whatever it sends passes this method of it.
    """
    as_text = server.postprocess_output_data

    def with_images(answers: list[Any], root_url: str) -> list[Any]:
        parts = []
        for answer in answers:
            if isinstance(answer, dict) and "png" in answer:
                data = answer["png"].partition(",")[2]
                image = server.types.ImageContent(type="image", data=data, mimeType="image/png")
                parts.append(image)
                answer = {name: value for name, value in answer.items() if name != "png"}
            parts += as_text([answer], root_url)
        return parts

    server.postprocess_output_data = with_images
